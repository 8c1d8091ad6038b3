"""Every bound of the project in one table; the unit is part of each name.

A bound exists so that nothing from outside (a stamp, a frame, a trace, a scenario) can make us use memory or time
without end. Each has a test at the bound. The text below a bound names what is bounded. The bounds of the log of a
server are in :mod:`antecede.limits.log`, and are read from here like the others.
"""

from typing import Final

from antecede.limits.log import *  # noqa: F403

members_max: Final = 4_096
"""Members of one order (one domain): destination sets are bit masks of this width."""
stamp_bytes_max: Final = 4 * 1024 * 1024
"""One encoded stamp. A full matrix of 1,024 members with three-byte counters is 3 MiB."""

counter_max: Final = 2**63 - 1
"""Any message counter."""
counter_jump_max: Final = 2**32
"""The largest difference between a counter in a stamp and its last known value: four thousand million messages."""

link_window_frames_max: Final = 65_536
"""The window of a link, in frames. The receiver has accepted all frames up to some number, and admits this many numbers
after it. The sender counts from the last number up to which all frames are acknowledged."""
link_resend_first_seconds: Final = 0.2
"""The time after which a simulated link sends a frame again (servers: ``peer_resend_seconds``). Each later wait is
twice as long."""
link_resend_seconds_max: Final = 10.0
"""The longest that a link waits between two resends of a frame."""
link_resend_frames_max: Final = 1_024
"""Frames that one tick of a link may resend."""

simulated_messages_max: Final = 1_000_000_000
"""Messages of one simulated run."""

topology_bytes_max: Final = 4 * 1024 * 1024
"""One topology file."""
topology_servers_max: Final = 4_096
"""Servers of one topology. The same limit holds for its domains."""
topology_drawn_servers_max: Final = 1_024
"""Servers of a topology that is drawn: a person cannot read a larger drawing."""
changes_kept_max: Final = 1_000
"""Changes of the topology that a server remembers: enough for years with one change per day."""
change_number_max: Final = 2**32 - 1
"""The largest number of a change: enough for a century with one change per second."""
clock_ms_max: Final = (2**63 - 1) // 1_000_000
"""The latest time of a wall clock, in milliseconds, whose nanoseconds fit into 64 bits: in the year 2262."""
mark_chars_max: Final = 64
"""The random name of a system or of an attempt at a change, or an epoch: 16 hexadecimal digits today."""
name_chars_max: Final = 64
"""The name of a server, a domain or an agent."""
lesson_bytes_max: Final = 2 * topology_bytes_max
"""A topology with its history, as JSON, for a server that has missed changes."""
change_page_bytes: Final = 256 * 1024
"""One page of the data that moves with agents and clients to another server."""
change_bytes_max: Final = 1024 * 1024 * 1024
"""All data that moves to one server, which keeps it in memory: four times the letters that its mailboxes may hold."""
change_idle_seconds_max: Final = 15.0
"""The time without a command after which a server abandons an undecided change. Commands come every tenth of a second,
unless a server imports something large."""
change_ask_seconds: Final = 2.0
"""The time between two questions to the coordinator of a change about its decision."""
change_command_seconds_max: Final = 60.0
"""The longest time for one command of a change: a server that does not answer in this time is blocked."""
change_look_seconds_max: Final = 15.0
"""The longest time for a command that only reads, or that abandons a change."""
removed_seconds: Final = 10.0
"""The time for which a removed server keeps running, so that its clients learn the new address."""

simulated_delay_seconds_max: Final = 1_000_000
"""One gap or delay of a simulated run: eleven days. A longer random time is replaced by this one."""

scenario_bytes_max: Final = 1024 * 1024
"""One scenario file."""
scenario_processes_max: Final = 64
"""Processes of one scenario: more cannot be drawn or read."""
scenario_wait_seconds_max: Final = 3_600
"""One ``wait`` of a scenario."""
scenario_packets_max: Final = 4_000
"""Packets of a scenario that are in transit or lost at one time."""
scenario_steps_max: Final = 200_000
"""Steps in playing one scenario: packets that leave or arrive, timers that expire, queues that are searched."""
trace_line_bytes_max: Final = 16 * 1024 * 1024
"""One line of a JSON Lines trace; a longer one is set aside as unreadable."""
conflicts_bytes_max: Final = 1024 * 1024
"""One file with a table of conflicting operations."""
conflict_pairs_max: Final = 65_536
"""Pairs of conflicting operations in one table."""
kin_instances_max: Final = 4_096
"""Operation instances of one object that have, at the same object, an ancestor or descendant with a conflicting
operation. Each is compared with all others: 16 million pairs take some 100 MB."""
raw_text_bytes_max: Final = 4 * 1024
"""The part of a quarantined row's own text that is kept."""

diagram_events_max: Final = 2_000
diagram_processes_max: Final = 256
"""Events and processes in one space-time diagram; more cannot be read by a person."""

explorer_processes_max: Final = 8
explorer_messages_max: Final = 16
"""Processes and messages of one exhaustive exploration."""
explorer_states_max: Final = 2_000_000
"""The default limit of states in one exploration; each takes one or two kilobytes."""

foreign_line_bytes_max: Final = 1024 * 1024
"""One line of a foreign log or span table; a longer one is skipped as unreadable."""
foreign_document_bytes_max: Final = 256 * 1024 * 1024
"""One JSON document that is not a sequence of lines: it must be read as a whole."""
foreign_events_max: Final = 2_000_000
"""Events of one import: all of them must be in memory to find their messages."""
foreign_halves_max: Final = 64
"""Records of different services about one span: two if caller and callee use the same id, more after repeated calls."""
foreign_clock_entries_max: Final = 20_000_000
"""Entries of all vector clocks of one import, including the clocks that an import of an editing session computes."""

label_chars_max: Final = 400
"""The name of an operation; or the name of an instance, which is a path with one number for each level of nesting."""

roots_conflicting_max: Final = 8
"""Conflicting operations of users that one object or server runs at the same time: more would only block each other."""
roots_rival_max: Final = 2
"""Conflicting operations of users that run at the same time, from version 3 of the rules of admission on: one request
runs, and one follows it. Further operations wait, so that they can share the next request. If they ran, they would only
make each other abort."""
roots_running_max: Final = 1_024
"""All operations of users, conflicting or not, that one object or server runs at the same time."""
roots_running_bytes_max: Final = 16 * 1024 * 1024
"""The arguments of all running operations of users; every replica has a copy. An operation with larger arguments runs
alone."""
shared_calls_max: Final = 256
"""Calls that share one request: a replica computes them in one step, and other work must not wait for long."""
shared_nested_max: Final = 8
"""Calls that share one request although they call other objects: all of them are computed again after each answer."""
shared_calls_bytes_max: Final = 256 * 1024
"""The arguments of calls that share one request; a call with larger arguments travels alone."""
nesting_depth_max: Final = 32
"""Levels of nested calls between objects; a deeper call fails."""
ended_instances_max: Final = 4_096
"""Failed and aborted operation instances that an object remembers, so that no slower caller starts them again."""
calls_open_max: Final = 20_000
"""Calls of objects at one server that wait to begin, or have begun and not ended; above this, further calls from
clients are refused."""
call_seconds_max: Final = 86_400
"""The longest that a call of a replicated object may take before it is aborted."""
call_depth_max: Final = 64
"""Levels of nested lists and dictionaries in the arguments of one call, its answer, or the state of an object."""
object_state_bytes_max: Final = 32 * 1024 * 1024
"""The state of one replicated object, which a snapshot writes as a whole; an operation that exceeds this fails."""
reason_chars_max: Final = 2_000
"""The reason of a failed operation, as its callers receive it."""

train_letters_max: Final = 1_024
"""Letters that share one message of a domain's order. This bound and the next two are part of the log format."""
train_copies_max: Final = 262_144
"""Destinations of all letters of one train together; one list of destinations in a train may serve many letters."""
train_bytes_max: Final = 1024 * 1024
"""Bytes of one train; a single larger letter travels alone."""
letter_bytes_max: Final = 8 * 1024 * 1024
"""One notification: together with the other results of its step it must fit into a record of the log."""
shared_addresses_max: Final = 262_144
"""Addresses in the lists of destinations that a server remembers; above this, it forgets all lists and starts again."""
message_id_chars_max: Final = 200
"""The id of one message."""

reactions_together_max: Final = 256
"""Letters that one agent receives together; their reactions are committed together."""
reactions_together_seconds: Final = 0.003
"""The time after which other agents and connections are served, if handlers are slow: 256 handlers of a millisecond
would stop a server for a quarter of a second. If this time were shorter, an overloaded server would spend more of its
time on publishes that it refuses."""

timer_seconds_max: Final = 100 * 366 * 86_400
"""The longest time of an agent's timer, and the longest timeout of its question: a hundred years."""
timers_together_max: Final = 1_024
"""Timers that fire in one step."""

frame_bytes_max: Final = 64 * 1024 * 1024
"""One frame between two authenticated servers; a train of letters, its stamp and its envelope fit easily."""
client_frame_bytes_max: Final = 10 * 1024 * 1024
"""One frame from a client. A client library begins a new batch at 1 MiB, and the last notification of a batch may have
8 MiB. With envelopes and ``publish_to_max`` addresses this is less than 10 MiB."""
frame_parts_max: Final = 65_536
"""Parts of one frame. Senders fill a frame up to 1 MiB, and a publish or an acknowledgement has more than 16 bytes."""
frame_entries_max: Final = 131_072
"""Packets in one part of a frame between servers. Senders fill a part up to 1 MiB; a packet has more than 8 bytes."""
frame_bytes_wanted: Final = 1024 * 1024
"""Parts that are ready at the same time share frames of about this length."""

hello_bytes_max: Final = 16 * 1024
"""The longest frame before the hello was accepted. A hello has a token, three names and, for servers, less than 160
bytes per shared domain; an operator's first request has only short arguments."""
token_bytes_max: Final = 4 * 1024
"""One token: a quarter of the longest hello."""
token_chars_min: Final = 32
"""The shortest token for servers that other machines can reach: it cannot be guessed if it is random."""

proof_bytes_max: Final = 128
"""One nonce (32 bytes), or the signatures with one or two keys (64 bytes each), in a proof of identity."""
access_bytes_max: Final = 4 * 1024 * 1024
"""One access file."""
identities_max: Final = 10_000
"""Identities of one role in an access file: more than the clients that a server can have at one time."""
patterns_max: Final = 1_000
"""Entries of one list of an access file: keys, names or patterns."""
pattern_chars_max: Final = 400
"""One name or pattern of an access file."""
permissions_cached_max: Final = 8_192
"""Addresses in the decisions about permissions that a session remembers; above this, it forgets all decisions."""
addresses_watched_max: Final = 10_000
"""Network addresses whose attempts to connect are counted: about 3 MB. Above this, the address with the oldest last
attempt is forgotten."""
audit_bytes_max: Final = 16 * 1024 * 1024
"""One file of the audit log; there are two, the current one and the previous one."""
audit_refusals_per_second: Final = 20.0
"""Refusals per second that the audit log records. Without this limit, repeated attempts of strangers would displace all
other entries."""

hello_seconds_max: Final = 10.0
"""The longest time that a new connection may take to identify itself."""
connections_max: Final = 4_096
"""Incoming connections of one server at one time, if there are enough file descriptors."""
strangers_max: Final = 512
"""Incoming connections that have not sent a hello yet, TLS handshakes included. Above this, each new one closes the
oldest one. Correct programs send their hello at once, so the number is small even if thousands of programs
reconnect."""
strangers_address_max: Final = 256
"""Connections from one address that have not sent a hello yet: half of ``strangers_max``, so one host cannot use all of
them."""
unfinished_bytes_max: Final = 256 * 1024 * 1024
"""Bytes of incomplete frames from clients and from connections without a hello: 25 frames of full length. Above this,
the connection whose frame began first is closed."""
unfinished_address_bytes_max: Final = 128 * 1024 * 1024
"""Bytes of incomplete frames from one address: half of ``unfinished_bytes_max``."""
descriptors_wanted: Final = 16_384
"""Open files that a server process requests from the operating system: its incoming connections, those to its peers (at
most the same number), and some thousands for the application in the same process."""
descriptors_reserved: Final = 160
"""File descriptors that incoming connections leave free: 64 for the metrics page, the rest for the log, snapshots, the
process that converts the trace, and the event loop."""
accept_retry_seconds: Final = 0.5
"""The time that a server without a free file descriptor waits before it accepts connections again."""

write_buffer_bytes_max: Final = 8 * 1024 * 1024
"""Bytes that may wait in one connection; above it nothing more is written until the other end has read."""
heartbeat_seconds: Final = 5.0
"""The time without output after which an end sends a keep-alive. After three times this without input, it
disconnects."""
dial_seconds_max: Final = 5.0
"""The longest pause between two tries to reach a peer."""
chat_leave_seconds: Final = 5.0
"""The longest time that a chat whose input has ended waits for a silent server: enough for one try to reach it."""
deferred_frames_max: Final = 8_192
"""Frames that wait for a connection that is full; further ones are dropped and resent later by their link."""
peer_resend_seconds: Final = 5.0
"""The time after which an unacknowledged frame is sent again to a connected peer. Usually a connection loses
nothing."""

reaction_tries_max: Final = 5
"""Tries of a reaction before its letter is dead."""
reaction_pause_seconds: Final = 0.1
"""The pause before the second try of a reaction. Each later pause is twice as long."""
tried_letters_max: Final = 1_000
"""Letters whose tries are counted because the process ended while it handled them. A count is deleted when its letter
is handled or dead. Above this limit, the oldest count is deleted."""
calls_named_max: Final = 65_536
"""Handler calls in progress that are recorded for the next life, 1 KiB each. Only calls of ``async`` handlers can reach
this number, because plain handlers run one at a time."""
reaction_slow_seconds: Final = 5.0
"""The time after which a handler that blocks the event loop is logged with its stack."""
reaction_seconds_max: Final = 300.0
"""The default limit of one reaction: ten times ``live_seconds_max``."""
reaction_seconds_limit: Final = 86_400.0
"""The largest limit for reactions that a topology may set."""
agent_state_bytes_max: Final = 32 * 1024 * 1024
"""The state of one agent, which each reaction may write as a whole; a reaction that exceeds this fails."""
worker_start_seconds_max: Final = 60.0
"""The longest time that the worker process of an isolated agent may take to import its class."""

step_bytes_max: Final = 4 * 1024 * 1024
"""The input that one step of a server takes, except for a single larger input."""
step_letters_max: Final = 65_536
"""Copies of letters that one step of a server makes for publishes; this takes about a tenth of a second. A batch to
many destinations is taken in several steps."""
record_piece_bytes_max: Final = 8 * 1024 * 1024
"""The largest piece of a step's record that becomes one record of the log. A longer record is cut into pieces."""

backlog_frames_max: Final = 16_384
"""Frames that peers have not acknowledged. Above this, clients' publishes are refused."""
backlog_bytes_max: Final = 256 * 1024 * 1024
"""The memory of frames that peers have not acknowledged. Above this, clients' publishes are refused."""
backlog_letters_max: Final = 200_000
"""Letters in mailboxes. Above this limit clients' publishes are refused and nothing more is read from peers. Then the
peers also fill up and refuse the letters of their clients."""
backlog_letter_bytes_max: Final = 256 * 1024 * 1024
"""The limit in bytes of memory for letters in mailboxes and timers: a quarter of a machine with 1 GiB. A multicast
counts once, with its destinations."""

mailbox_letters_max: Final = 50_000
"""Letters in one client's mailbox, by default: a quarter of the limit for all mailboxes. The oldest expire first."""
mailbox_bytes_max: Final = 64 * 1024 * 1024
"""Bytes of notifications in one client's mailbox, by default: a quarter of the limit for all. The oldest expire
first."""
mailbox_clients_share_max: Final = 0.5
"""The share of the limits for all mailboxes that the mailboxes of clients may fill together. Above this, their oldest
letters expire, so absent clients alone never fill a server."""
client_return_seconds: Final = 60.0
"""Letters that were handed to a client expire only if the client has reported no letter as handled for this time. A
client needs less time to notice a broken connection and to connect again."""

dead_letters_max: Final = 200_000
"""Dead letters that a server keeps: the same number as letters in mailboxes. Above this, the oldest are deleted."""
dead_letter_bytes_max: Final = 256 * 1024 * 1024
"""The memory of the dead letters that a server keeps. Above this, the oldest are deleted."""
dead_page_letters_max: Final = 1_000
"""Dead letters that one request lists or sends again."""
dead_page_examined_max: Final = 20_000
"""Dead letters that one request examines, so that its step takes only some milliseconds."""
dead_page_bytes_max: Final = 1024 * 1024
"""Bytes of the dead letters that one request finds, so that the record and the answer are short enough."""
drop_letters_max: Final = 10_000
"""Letters that one request deletes: a record of about 1 MiB, and a step of about 20 ms."""
dead_shown_bytes_max: Final = 4 * 1024 * 1024
"""The fields of one dead letter, as JSON, that are shown: half of the longest notification."""
backlog_unwatched_bytes_max: Final = 4 * 1024 * 1024
"""Bytes written to the log after which a server checks again whether its backlog is above the limits, even if little
time has passed. This is the size of one step, so the limits are exceeded by a few percent at most."""

temporary_client_seconds_max: Final = 600.0
"""The time without a connection after which a server forgets a temporary client. The client reconnects within half of
this time or never, so that none of its repeated publishes counts as new. The other half is needed because the two ends
may notice a broken connection at different times."""

publish_window_max: Final = 65_536
"""Publishes of one client that are not accepted yet."""
publish_batch_max, publish_many_max = 1_024, 16_384
"""Publishes that share one part of a frame; and publishes of one ``send_many``, a quarter of the window. After
``ready``, which waits until half of the window is free, a ``send_many`` always fits."""
publish_to_max: Final = 4_096
"""Destinations of one publish of a client: the number of servers that a topology may have. For more, use topics."""
publish_to_read_max: Final = 65_536
"""The largest number of destinations of a publish that a server decodes. It is above ``publish_to_max``. So if a
publish has too many destinations, the server can still read its number, and refuses only this publish."""
address_chars_max: Final = 200
"""One destination: ``name@server`` with names of 64 characters is 129 long."""
type_chars_max: Final = 400
"""The type of one notification: the name of a class, or of an operation (``label_chars_max``)."""
session_parts_max: Final = 2_048
"""Parts of one client that are handled in one iteration of the event loop. Even if each is a refused publish, for which
similar names are searched, other connections wait less than 100 ms."""
done_letters_max: Final = 1_024
"""Letters in one ``Done`` of a client. A client has at most ``reactions_together_max`` letters at a time."""
request_arguments_max: Final = 8
"""Arguments of one request of an operator; no command has more than seven."""
deliver_bytes_wanted: Final = 1024 * 1024
"""Bytes of letters that are pushed to a client together; a single larger letter is sent alone."""
trace_context_chars_max: Final = 128
"""The context of one publish: a W3C trace context has 55 characters today, and the label follows it."""
notification_label_chars_max: Final = 80
"""The label of one notification: one line of a terminal."""

trace_pending_letters_max: Final = 200_000
"""Letters whose class and label are remembered while a log is converted to a trace, until the letters are handled:
about 200 bytes each. If more letters wait in mailboxes, the rows of the oldest lack these two columns."""

metrics_request_bytes_max: Final = 8 * 1024
"""The head of one request for a server's metrics page."""
metrics_connections_max: Final = 64
"""Requests for the metrics page at one time. Above this, new connections are closed."""

live_seconds_max: Final = 30.0
"""The longest time for which a server's event loop may be blocked, or inputs may wait for a step; then ``/live`` fails.
Peers and clients disconnect after 15 s of silence. Twice that is a long pause, and enough for a slow handler to end."""
orphan_seconds_max: Final = 30.0
"""The longest time that a server takes to stop after the ``antecede up`` that started it has ended: 5 s for the letters
in the mailboxes, the rest for a snapshot. Then it ends at once; its log has everything."""

trace_retry_seconds: Final = 1.0
"""The first pause before a server repeats a failed conversion of its log. Each later pause is twice as long."""
trace_retry_seconds_max: Final = 60.0
"""The longest pause before a server repeats a failed conversion of its log."""
trace_segments_behind_max: Final = 8
"""Closed segments of the log that wait for conversion before the server logs a warning."""

contested_runs_max: Final = 1_000_000
"""Ranges of indices, each claimed by several rows of a trace, that are reported to the driver of a Spark job."""
frame_rows_local_max: Final = 100_000
"""Rows of a DataFrame that are collected and judged in the driver: about 20 MB, judged in less time than a job on Spark
takes to start."""
walk_events_max: Final = 2_000_000_000
"""Events of a trace that one task reads, 16 GB on the disk of one machine. A larger trace is read by several tasks."""
chunk_events_wanted: Final = 2_000_000
"""Events of a chunk of time, if a trace is verified by chunks."""
cut_entries_max: Final = 1_000_000
"""Cuts through a trace, multiplied by its processes: this is the input of each task in a round of cutting."""
cut_rounds_max: Final = 40
"""Rounds in which cuts are moved back until they are consistent. Cuts that still move after that are dropped."""

crash_reports_max: Final = 20
"""Reports of internal errors that are kept per user: enough for a bug report. A program that fails in a loop must not
fill the disk."""
crash_report_bytes_max: Final = 256 * 1024
"""One report. A traceback of 200 calls takes about 30 KB, but the text of an exception may have any length."""

unread_share_max: Final = 0.1
"""The share of rows that cannot be read as events, above which a trace counts as unreadable. A torn line per file or a
few rows of another program are common, but with one row in ten the meaning of the verdict is unclear."""

report_processes_max: Final = 100
"""Processes in the map of a report's traffic; all others are together in one more row and column."""

mapping_bytes_max: Final = 64 * 1024
"""One mapping file of an import: a few lines, each of them perhaps a long regular expression."""
pattern_line_chars_max: Final = 64 * 1024
"""One line that a user's regular expression searches: even a search in quadratic time takes only some seconds."""
pattern_seconds_max: Final = 2.0
"""The longest time for one search. A good search takes microseconds; one that backtracks may take years."""

export_events_max: Final = {"perfetto": 1_000_000, "otlp": 1_000_000, "shiviz": 50_000, "dot": 2_000, "mermaid": 400}
"""Events of one exported trace. Perfetto and collectors take files of some 500 MB; ShiViz keeps all events in a web
page; a graph of more points cannot be read; Mermaid refuses texts of more than 50,000 characters."""
preview_records_max: Final = 10_000
"""Records that ``import --preview`` examines: enough to show every kind of record, in about a second."""
mapped_kinds_max: Final = 1_000
"""Kinds of records that an import counts. A field with more different values is free text, not a kind."""

plan_multicasts_max: Final = 20_000
"""Different multicasts that a plan considers. If there are more, the most frequent represent all, so that computing the
cost of one plan takes only milliseconds."""
plan_work_max: Final = 1.2e10
"""Elementary steps of one search for domains: about a minute on two cores, for any number of servers."""
plan_front_max: Final = 12
"""Plans of a Pareto front that are reported: more would not help a person to choose."""
plan_sample_messages_max: Final = 200_000
"""Messages that are replayed in the simulator to check a plan's cost: the error of the mean is about a percent."""
plan_file_bytes_max: Final = 256 * 1024 * 1024
"""One table of traffic, of processes and their servers, or of pins: one row for each pair of 4,096 servers fits."""
plan_break_even_servers_max: Final = 1_024
"""The largest number of servers tried in the search for the size at which domains are cheaper than one flat domain,
with uniform traffic."""

sweep_cells_max: Final = 100_000
"""Cells of one sweep: about a day of work if each takes a second."""
sweep_seeds_max: Final = 10_000
"""Runs of one setting: half the confidence interval is then a fiftieth of the standard deviation."""
sweep_scale_max: Final = 100.0
"""The largest factor by which a study may be longer than in its paper; a larger one is a typing error."""
sweep_file_bytes_max: Final = 1024 * 1024
"""One file with the axes of a grid: a thousand values of each axis fit."""
