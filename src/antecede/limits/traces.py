"""Limits for simulations, and for traces: for their import, conversion, verification and export, and for the plans and
reports that are made from traces."""

from typing import Final

simulated_messages_max: Final = 1_000_000_000
"""The largest number of messages of one simulated run."""

simulated_delay_seconds_max: Final = 1_000_000
"""The largest parameter of a random distribution of simulated delays or gaps (times between two messages), in seconds.
The limit is about 11 days. Longer times of a Pareto distribution are cut to this limit."""

scenario_bytes_max: Final = 1024 * 1024
"""The largest size of one scenario file, in bytes."""
scenario_processes_max: Final = 64
"""The largest number of processes in one scenario. A person could not read a drawing of more processes. The same limit
holds for the number of domains in one scenario."""
scenario_wait_seconds_max: Final = 3_600
"""The longest time of one ``wait`` statement in a scenario."""
scenario_packets_max: Final = 4_000
"""The largest number of packets of a scenario that are in transit or lost at the same time."""
scenario_steps_max: Final = 200_000
"""The largest number of steps when a scenario is played once. A step is one packet that leaves or arrives, one timer
that expires, or one search of a queue."""
trace_line_bytes_max: Final = 16 * 1024 * 1024
"""The largest length of one line of a JSON Lines trace, in bytes. A longer line is quarantined as unreadable. The same
limit holds for a line of JSON in an import."""
conflicts_bytes_max: Final = 1024 * 1024
"""The largest size of one file with a table of conflicting operations, in bytes."""
conflict_pairs_max: Final = 65_536
"""The largest number of pairs of operations in one table of conflicting operations."""
kin_instances_max: Final = 4_096
"""The largest number of *kin instances* of one object in a trace. An instance is one execution of an operation. If
instance A calls instance B at the same object, directly or indirectly, and their operations conflict, both are kin
instances. Each kin instance is compared with all others. 4,096 instances give 16 million pairs,
which take some 100 MB."""
raw_text_bytes_max: Final = 4 * 1024
"""The largest size of the text that is kept from a quarantined row, in bytes. The text is the start of the row. Long
names in an import are cut to the same length."""

diagram_events_max: Final = 2_000
"""The largest number of events in one space-time diagram. A person could not read a larger diagram."""
diagram_processes_max: Final = 256
"""The largest number of processes in one space-time diagram. A person could not read a larger diagram."""

explorer_processes_max: Final = 8
"""The largest number of processes in one exhaustive exploration."""
explorer_messages_max: Final = 16
"""The largest number of messages in one exhaustive exploration."""
explorer_states_max: Final = 2_000_000
"""The largest number of states in one exhaustive exploration, if the user sets no other limit. Each state takes one or
two kilobytes of memory."""

foreign_line_bytes_max: Final = 1024 * 1024
"""The largest length of one line in an imported log or span table of another program, in bytes. A longer line is
skipped as unreadable."""
foreign_document_bytes_max: Final = 256 * 1024 * 1024
"""The largest size of one imported JSON document that is not divided into lines, in bytes. Such a document must be read
as a whole."""
foreign_events_max: Final = 2_000_000
"""The largest number of events of one import. All events must be in memory, so that their messages can be found."""
foreign_halves_max: Final = 64
"""The largest number of different records with the same span id in one import. There are two such records if caller and
callee share the id, and more if the call was repeated."""
foreign_clock_entries_max: Final = 20_000_000
"""The largest number of entries in all vector clocks of one import or of one ShiViz export. Most imports read the
vector clocks from a file. The import of a recorded editing session computes them."""

trace_pending_letters_max: Final = 200_000
"""The largest number of unhandled letters that the conversion of a log to a trace remembers. For each such letter, the
conversion keeps the class, the label and other columns of the trace (about 200 bytes) until the letter is handled. If
more letters wait in mailboxes, these columns are empty in the rows of the oldest letters."""

trace_retry_seconds: Final = 1.0
"""The first pause before a server repeats a failed conversion of its log to a trace. Each later pause is twice as
long."""
trace_retry_seconds_max: Final = 60.0
"""The longest pause before a server repeats a failed conversion of its log to a trace."""
trace_segments_behind_max: Final = 8
"""The smallest number of waiting log segments at which a server logs a warning. A segment waits if the segment is
closed but not yet converted to a trace."""

contested_runs_max: Final = 1_000_000
"""The largest number of contested ranges of event indices that are reported to the driver of a Spark job. In a
contested range, several rows of the trace have the same process and the same index."""
frame_rows_local_max: Final = 100_000
"""The largest number of rows of a Spark DataFrame that are collected and judged in the driver, without a Spark job. The
rows take about 20 MB, and judging them takes less time than the start of a Spark job."""
walk_events_max: Final = 2_000_000_000
"""The largest number of events of a trace that one task reads alone. These events take 16 GB on the disk of one
machine. Several tasks read a larger trace."""
chunk_events_wanted: Final = 2_000_000
"""The wanted number of events in one chunk of a trace. A large trace is divided by time into chunks, which are verified
separately."""
cut_entries_max: Final = 1_000_000
"""The largest number of entries in the table of cuts through a trace. A cut divides the events of each process into
earlier and later events, so the table has one entry for each cut and each process. Every task that moves the cuts gets
the whole table."""
cut_rounds_max: Final = 40
"""The largest number of rounds in which cuts through a trace are moved back until the cuts are consistent. Cuts that
still move after the last round are dropped."""

unread_share_max: Final = 0.1
"""The largest share of the rows of a trace that may be unreadable as events. If more rows are unreadable, the whole
trace is treated as unreadable. An incomplete line per file or a few rows of another program are common. But with one
unreadable row in ten, the verdict does not mean much."""

report_processes_max: Final = 100
"""The largest number of processes in the traffic map of a report. All other processes share one additional row and one
additional column."""

mapping_bytes_max: Final = 64 * 1024
"""The largest size of one mapping file of an import, in bytes. Such a file has few lines, but a line may contain a long
regular expression."""
pattern_line_chars_max: Final = 64 * 1024
"""The largest length of a line that is searched with a user's regular expression, in characters. Even a search with
quadratic time takes only seconds for such a line."""
pattern_seconds_max: Final = 2.0
"""The longest time for the search of one line with a user's regular expressions. Most searches take microseconds, but
some would take years."""

export_events_max: Final = {"perfetto": 1_000_000, "otlp": 1_000_000, "shiviz": 50_000, "dot": 2_000, "mermaid": 400}
"""The largest number of events of one exported trace, for each format. Perfetto and collectors accept files of some 500
MB. ShiViz keeps all events in one web page. A person could not read a larger DOT graph. Mermaid refuses texts of more
than 50,000 characters."""
preview_records_max: Final = 10_000
"""The largest number of records that ``import --preview`` examines. The number is enough to show every kind of record,
in about a second."""
mapped_kinds_max: Final = 1_000
"""The largest number of kinds of records that an import counts. If the field with the kind has more different values,
the field contains free text, not kinds."""

plan_multicasts_max: Final = 20_000
"""The largest number of different multicasts that are considered when the domains of a system are planned. If there are
more, the most frequent multicasts represent all multicasts. With this limit, the cost of one plan can be computed in
milliseconds."""
plan_work_max: Final = 1.2e10
"""The largest number of elementary steps of one search for the best domains of a system. The search takes about a
minute on two cores, for any number of servers."""
plan_front_max: Final = 12
"""The largest number of plans on the Pareto front that are reported. More plans would not help a person to choose."""
plan_sample_messages_max: Final = 200_000
"""The largest number of messages that the simulator replays to check the cost of a plan. With this number, the error of
the mean is about one percent."""
plan_file_bytes_max: Final = 256 * 1024 * 1024
"""The largest size of one input file of ``antecede plan``, in bytes. The file contains the traffic, the processes with
their servers, or the pins (rules about servers that share a domain or are routers). All pairs of 4,096 servers fit into
the file."""
plan_break_even_servers_max: Final = 1_024
"""The largest number of servers in the search for the break-even point. The break-even point is the smallest number of
servers for which several domains cost less than one domain, if the traffic is uniform."""

sweep_cells_max: Final = 100_000
"""The largest number of cells of one sweep. Each cell is one simulated run. If each run takes a second, all runs take
about a day."""
sweep_seeds_max: Final = 10_000
"""The largest number of runs of one setting of a sweep, with different seeds. With this number, half the confidence
interval is 1/50 of the standard deviation."""
sweep_scale_max: Final = 100.0
"""The largest value of ``--scale`` for a sweep: the factor by which each run is longer than in the study. A larger
factor is probably a typing error."""
sweep_file_bytes_max: Final = 1024 * 1024
"""The largest size of one file with the axes of a sweep's grid, in bytes. A thousand values of each axis fit."""
