"""Code for Spark: find a Java, check a remote master and its workers, pass data from stage to stage, and show
progress."""
