"""All limits of the project in one table. The name of each limit contains its unit.

A limit exists so that no input from outside (a stamp, a frame, a trace, a scenario) can make the program use memory or
time without end. Each limit has a test with a value at the limit. The text below a limit says what is limited. The
limits for the log of a server are defined in :mod:`antecede.limits.log`, but other modules import them from here.
"""

from typing import Final

from antecede.limits.log import *  # noqa: F403

members_max: Final = 4_096
"""Members of one order, that is, of one domain. A set of destinations is a bit mask with one bit per member."""
stamp_bytes_max: Final = 4 * 1024 * 1024
"""The size of one encoded stamp. A full matrix of 1,024 members with three-byte counters has 3 MiB."""

counter_max: Final = 2**63 - 1
"""The largest value of any message counter."""
counter_jump_max: Final = 2**32
"""The largest difference between a counter in a stamp or a frame and its last known value: 4,000 million messages."""

link_window_frames_max: Final = 65_536
"""Frames in the window of a link. The receiver's window begins at the first frame that the receiver has not accepted.
The sender's window begins at the first frame that is not acknowledged."""
link_resend_first_seconds: Final = 0.2
"""The time after which a simulated link sends an unacknowledged frame again. Each later wait is twice as long. Links
between servers use ``peer_resend_seconds`` instead."""
link_resend_seconds_max: Final = 10.0
"""The longest time between two resends of a frame by a link."""
link_resend_frames_max: Final = 1_024
"""Frames that one call of a link's ``tick`` may resend."""

simulated_messages_max: Final = 1_000_000_000
"""Messages of one simulated run."""

topology_bytes_max: Final = 4 * 1024 * 1024
"""The size of one topology file."""
topology_servers_max: Final = 4_096
"""Servers of one topology. The same limit holds for its domains."""
topology_drawn_servers_max: Final = 1_024
"""Servers of a topology that can be drawn: a person could not read a larger drawing."""
changes_kept_max: Final = 1_000
"""Changes of the topology that a server remembers: enough for years with one change per day."""
change_number_max: Final = 2**32 - 1
"""The largest sequence number of a change of the topology: enough for a century with one change per second."""
clock_ms_max: Final = (2**63 - 1) // 1_000_000
"""The latest time of a wall clock, in the year 2262: a later time in nanoseconds would not fit into 64 bits."""
mark_chars_max: Final = 64
"""The length of the id of a system, of an epoch, or of an attempt to make a change: 16 hexadecimal digits today."""
name_chars_max: Final = 64
"""The length of the name of a server, a domain or an agent."""
lesson_bytes_max: Final = 2 * topology_bytes_max
"""The size of the JSON text from which a server learns changes that it has missed: the topology and its history."""
change_page_bytes: Final = 256 * 1024
"""The size of one page of data, when agents and clients move to another server together with their data."""
change_bytes_max: Final = 1024 * 1024 * 1024
"""The size of all data that one change moves into the memory of one server: four times ``backlog_letter_bytes_max``."""
change_idle_seconds_max: Final = 15.0
"""The time without a command after which a server abandons a change that is not decided yet. Usually a command comes
every tenth of a second; only while a server imports much data, the next command comes later."""
change_ask_seconds: Final = 2.0
"""The time for which a server waits for the decision about a change, before it asks the coordinator (again)."""
change_command_seconds_max: Final = 60.0
"""The longest time for one command of a change. Only a server that is blocked needs more time."""
change_look_seconds_max: Final = 15.0
"""The longest time for a command of a change that only reads, or that abandons the change."""
removed_seconds: Final = 10.0
"""The time that a server keeps running after its removal, so that its clients learn the address of their new server."""

simulated_delay_seconds_max: Final = 1_000_000
"""The largest parameter of a distribution of simulated gaps or delays: 11 days. Longer Pareto times are cut to this."""

scenario_bytes_max: Final = 1024 * 1024
"""The size of one scenario file."""
scenario_processes_max: Final = 64
"""Processes of one scenario: a person could not read a drawing of more processes."""
scenario_wait_seconds_max: Final = 3_600
"""The time of one ``wait`` in a scenario."""
scenario_packets_max: Final = 4_000
"""Packets of a scenario that are in transit or lost at one time."""
scenario_steps_max: Final = 200_000
"""Steps of one play of a scenario: each packet that leaves or arrives, each expired timer, each search of a queue."""
trace_line_bytes_max: Final = 16 * 1024 * 1024
"""The length of one line of a JSON Lines trace; a longer line is quarantined as unreadable."""
conflicts_bytes_max: Final = 1024 * 1024
"""The size of one file with a table of conflicting operations."""
conflict_pairs_max: Final = 65_536
"""Pairs of operations in one table of conflicting operations."""
kin_instances_max: Final = 4_096
"""Operation instances of one object that conflict with an instance of the same object above or below them in the tree
of nested calls. Each is compared with all others: 4,096 instances give 16 million pairs, which take some 100 MB."""
raw_text_bytes_max: Final = 4 * 1024
"""Bytes at the start of a quarantined row that are kept as text. Long names in an import are cut to the same length."""

diagram_events_max: Final = 2_000
diagram_processes_max: Final = 256
"""Events (``diagram_events_max``) and processes in one space-time diagram: a person could not read a larger one."""

explorer_processes_max: Final = 8
explorer_messages_max: Final = 16
"""Processes (``explorer_processes_max``) and messages of one exhaustive exploration."""
explorer_states_max: Final = 2_000_000
"""The default limit of states in one exhaustive exploration; each state takes one or two kilobytes of memory."""

foreign_line_bytes_max: Final = 1024 * 1024
"""The length of one line in a log or span table of another program; a longer line is skipped as unreadable."""
foreign_document_bytes_max: Final = 256 * 1024 * 1024
"""The size of one imported JSON document that is not divided into lines, and must therefore be read as a whole."""
foreign_events_max: Final = 2_000_000
"""Events of one import: all of them must be in memory, so that their messages can be found."""
foreign_halves_max: Final = 64
"""Different records with the same span id: two if caller and callee share the id, more if the call was repeated."""
foreign_clock_entries_max: Final = 20_000_000
"""Entries of all vector clocks in one import (read, or computed for an editing session) or in one ShiViz export."""

label_chars_max: Final = 400
"""The length of the name of an operation, or of an operation instance (a path with one number per level of nesting)."""

roots_conflicting_max: Final = 8
"""Conflicting operations of users that one object or server runs at the same time, by versions 1 and 2 of the admission
rules (version 1 counts all operations). More operations would only block each other."""
roots_rival_max: Final = 2
"""Conflicting operations of users that one object or server runs at the same time, by version 3 of the admission rules
and later versions. One request runs, and one request follows. All other operations wait, and can share a later request.
If they ran, they would only make each other abort."""
roots_running_max: Final = 1_024
"""All operations of users, conflicting or not, that one object or server runs at the same time."""
roots_running_bytes_max: Final = 16 * 1024 * 1024
"""The arguments of all running operations of users together; every replica keeps a copy of them. An operation with
larger arguments runs alone."""
shared_calls_max: Final = 256
"""Calls that share one request. A replica computes all of them in one step, and other work must not wait for long."""
shared_nested_max: Final = 8
"""Calls that share one request, if they call other objects. The number is small because all calls of the request are
computed again after each answer to a nested call."""
shared_calls_bytes_max: Final = 256 * 1024
"""The arguments of all calls that share one request; a call with larger arguments is sent alone."""
nesting_depth_max: Final = 32
"""Levels of nested calls between objects; a deeper call fails."""
ended_instances_max: Final = 4_096
"""Failed and aborted operation instances that an object remembers, so that a late request does not start them again."""
calls_open_max: Final = 20_000
"""Unfinished calls to objects at one server, including the calls that still wait to begin. Above this limit, further
calls from clients are refused."""
call_seconds_max: Final = 86_400
"""The longest time that a call of a replicated object may take; a longer call is aborted."""
call_depth_max: Final = 64
"""Levels of nested lists and dictionaries in the arguments or the answer of one call, or in the state of an object."""
object_state_bytes_max: Final = 32 * 1024 * 1024
"""The state of one replicated object, written by snapshots as a whole. An operation with a larger new state fails."""
reason_chars_max: Final = 2_000
"""The length of the reason that the callers of a failed operation receive."""

train_letters_max: Final = 1_024
"""Letters of one train, which share one message of a domain. The log format depends on the three ``train_`` limits."""
train_copies_max: Final = 262_144
"""Destinations of all letters of one train together, even if several letters share one list of destinations."""
train_bytes_max: Final = 1024 * 1024
"""The size of one train of letters; a single larger letter is sent alone."""
letter_bytes_max: Final = 8 * 1024 * 1024
"""The size of one encoded notification, and of the encoded arguments or answer of one call. A server keeps several of
them in memory for each connection."""
shared_addresses_max: Final = 262_144
"""Addresses in all lists of destinations that a server remembers. Above this limit, the server forgets all lists."""
message_id_chars_max: Final = 200
"""The length of the id of one message."""

reactions_together_max: Final = 256
"""Letters that one agent or client gets as one batch. The reactions of an agent to a batch are committed together."""
reactions_together_seconds: Final = 0.003
"""The time after which a server ends a batch of slow handlers early, and serves other agents and connections. Otherwise
256 handlers of one millisecond each would stop the server for a quarter of a second. If this time were shorter, an
overloaded server would spend more of its time on publishes that it refuses."""

timer_seconds_max: Final = 100 * 366 * 86_400
"""The longest time of an agent's timer, and the longest timeout of a question that an agent asks: a hundred years."""
timers_together_max: Final = 1_024
"""Timers that fire in one step of a server."""

frame_bytes_max: Final = 64 * 1024 * 1024
"""The size of one frame between authenticated servers; a train of letters with its stamp and envelope fits easily."""
client_frame_bytes_max: Final = 10 * 1024 * 1024
"""The size of one frame from a client. A client library begins a new batch at 1 MiB, and the last notification of a
batch may have 8 MiB. Together with the envelopes and ``publish_to_max`` addresses, a batch has less than 10 MiB."""
frame_parts_max: Final = 65_536
"""Parts of one frame: a full frame has 1 MiB, and each publish or acknowledgement in it has more than 16 bytes."""
frame_entries_max: Final = 131_072
"""Packets in one part of a frame between servers: a full part has 1 MiB, and each packet has more than 8 bytes."""
frame_bytes_wanted: Final = 1024 * 1024
"""The usual length of a full frame: parts that are ready at the same time share frames of about this length."""

hello_bytes_max: Final = 16 * 1024
"""The longest frame that is read before the hello is accepted. A hello has a token, three names and, if a server sends
it, less than 160 bytes per shared domain. The first request of an operator has only short arguments."""
token_bytes_max: Final = 4 * 1024
"""The size of one token: a quarter of the longest hello."""
token_chars_min: Final = 32
"""The shortest token for servers that other machines can reach: a random token of this length cannot be guessed."""

proof_bytes_max: Final = 128
"""One field of a proof of identity: a nonce (32 bytes), or the signatures with one or two keys (64 bytes each)."""
access_bytes_max: Final = 4 * 1024 * 1024
"""The size of one access file."""
identities_max: Final = 10_000
"""Identities of one role in an access file: more than the clients that can be connected to a server at one time."""
patterns_max: Final = 1_000
"""Entries of one list in an access file. The entries are keys, names or patterns."""
pattern_chars_max: Final = 400
"""The length of one name or pattern in an access file."""
permissions_cached_max: Final = 8_192
"""Addresses in all decisions about permissions that a session remembers. Above this limit, it forgets all decisions."""
addresses_watched_max: Final = 10_000
"""Network addresses for which a server counts the attempts to connect; the counts take about 3 MB. Above this limit,
the server forgets the address that has made no attempt for the longest time."""
audit_bytes_max: Final = 16 * 1024 * 1024
"""The size of one file of the audit log. There are two files: the current one and the previous one."""
audit_refusals_per_second: Final = 20.0
"""Refusals per second that the audit log records. Without this limit, repeated attempts of strangers would displace all
other entries."""

hello_seconds_max: Final = 10.0
"""The longest time that a new connection may take to identify itself."""
connections_max: Final = 4_096
"""Incoming connections of one server at one time, if the process may open enough files."""
strangers_max: Final = 512
"""Incoming connections whose hello is not accepted yet, including connections in a TLS handshake. Above this limit,
each new connection closes the oldest of them. Correct programs send their hello at once, so the number is small even if
thousands of programs reconnect."""
strangers_address_max: Final = 256
"""Incoming connections from one network address whose hello is not accepted yet: half of ``strangers_max``, so that one
host cannot keep all other hosts out."""
unfinished_bytes_max: Final = 256 * 1024 * 1024
"""Bytes of incomplete frames from clients, and from connections whose hello is not accepted yet: 25 frames of full
length. Above this limit, the connection whose frame began first is closed."""
unfinished_address_bytes_max: Final = 128 * 1024 * 1024
"""Bytes of incomplete frames from one network address: half of ``unfinished_bytes_max``."""
descriptors_wanted: Final = 16_384
"""Open files that a server process requests from the operating system: for its incoming connections, for its
connections to peers (at most the same number), and some thousands for the application in the same process."""
descriptors_reserved: Final = 160
"""File descriptors that are not used for incoming connections: 64 for the metrics page, and the others for the log, the
snapshots, the process that converts the trace, and the event loop."""
accept_retry_seconds: Final = 0.5
"""The time for which a server stops accepting connections after it had no free file descriptor."""

write_buffer_bytes_max: Final = 8 * 1024 * 1024
"""Bytes that may wait in one connection. Above this limit, nothing more is written until the other end has read."""
heartbeat_seconds: Final = 5.0
"""The time without output after which one end of a connection sends a keep-alive. An end that has received nothing for
three times this time disconnects."""
dial_seconds_max: Final = 5.0
"""The longest pause between two tries to reach a peer."""
chat_leave_seconds: Final = 5.0
"""The longest time that a chat waits for a silent server after the chat's input has ended: enough for one new try."""
deferred_frames_max: Final = 8_192
"""Frames that wait until a full connection has room. Further frames are dropped, and their link sends them again."""
peer_resend_seconds: Final = 5.0
"""The time after which an unacknowledged frame is sent again to a connected peer. Connections rarely lose frames."""

reaction_tries_max: Final = 5
"""Tries to handle one letter. If all of them fail, the letter becomes a dead letter."""
reaction_pause_seconds: Final = 0.1
"""The pause before the second try to handle a letter. Each later pause is twice as long."""
tried_letters_max: Final = 1_000
"""Letters for which a server counts how often its process ended during the handling of the letter. A count is deleted
when the letter is handled or dead. Above this limit, the oldest count is deleted."""
calls_named_max: Final = 65_536
"""Handler calls in progress that a server records, 1 KiB each, so that they are known after a crash. Only calls of
``async`` handlers can reach this number, because plain handlers run one at a time."""
reaction_slow_seconds: Final = 5.0
"""The time after which a handler that still blocks the event loop is logged with its stack."""
reaction_seconds_max: Final = 300.0
"""The longest time of one reaction to a letter, if the topology sets no limit: ten times ``live_seconds_max``."""
reaction_seconds_limit: Final = 86_400.0
"""The largest value of ``reaction_seconds_max`` that a topology may set."""
agent_state_bytes_max: Final = 32 * 1024 * 1024
"""The state of one agent. Each reaction may write it as a whole. A reaction fails if the new state is larger."""
worker_start_seconds_max: Final = 60.0
"""The longest time in which the worker process of an isolated agent must import the class of the agent."""

step_bytes_max: Final = 4 * 1024 * 1024
"""The size of all inputs of one step of a server together. Only the last input may make the sum larger than this."""
step_letters_max: Final = 65_536
"""Copies of letters that one step of a server makes for publishes; this takes about a tenth of a second. A batch to
many destinations is divided among several steps."""
record_piece_bytes_max: Final = 8 * 1024 * 1024
"""The largest piece in which the record of a step is stored in the log. A longer record is stored as several pieces."""

backlog_frames_max: Final = 16_384
"""Frames that peers have not acknowledged. Above this limit, a server refuses the publishes of clients."""
backlog_bytes_max: Final = 256 * 1024 * 1024
"""The memory for frames that peers have not acknowledged. Above this, a server refuses the publishes of clients."""
backlog_letters_max: Final = 200_000
"""Letters in all mailboxes of a server. Above this limit, it refuses the publishes of its clients and reads nothing
from its peers. Then the peers also become full and refuse the publishes of their clients."""
backlog_letter_bytes_max: Final = 256 * 1024 * 1024
"""The memory for all letters in the mailboxes and timers of a server: a quarter of a machine with 1 GiB. A multicast
counts once, together with the list of its destinations."""

mailbox_letters_max: Final = 50_000
"""Letters in the mailbox of one client, by default: a quarter of ``backlog_letters_max``. The oldest expire first."""
mailbox_bytes_max: Final = 64 * 1024 * 1024
"""Bytes of notifications in the mailbox of one client, by default: a quarter of ``backlog_letter_bytes_max``. The
oldest letters expire first."""
mailbox_clients_share_max: Final = 0.5
"""The share of ``backlog_letters_max`` and ``backlog_letter_bytes_max`` that the mailboxes of all clients may fill
together. Above this share, the oldest letters of clients expire, so that absent clients alone never fill a server."""
client_return_seconds: Final = 60.0
"""Letters that were handed to a client can expire only if the client has not reported a handled letter for this time. A
client needs less time than this to notice a broken connection and to connect again."""

dead_letters_max: Final = 200_000
"""Dead letters that a server keeps: the same number as ``backlog_letters_max``. Above this, the oldest are deleted."""
dead_letter_bytes_max: Final = 256 * 1024 * 1024
"""The memory for the dead letters that a server keeps. Above this limit, the oldest are deleted."""
dead_page_letters_max: Final = 1_000
"""Dead letters that one request of an operator lists or sends again."""
dead_page_examined_max: Final = 20_000
"""Dead letters that one request of an operator examines, so that the step takes only some milliseconds."""
dead_page_bytes_max: Final = 1024 * 1024
"""Bytes of all dead letters that one request finds, so that its record in the log and its answer are short enough."""
drop_letters_max: Final = 10_000
"""Letters that one request deletes. Its record in the log then has about 1 MiB, and its step takes about 20 ms."""
dead_shown_bytes_max: Final = 4 * 1024 * 1024
"""The fields of one dead letter as JSON: half of ``letter_bytes_max``. Longer fields are not shown."""
backlog_unwatched_bytes_max: Final = 4 * 1024 * 1024
"""Bytes written to the log after which a server checks its backlog again, even if little time has passed since the last
check. This is the size of one step, so the backlog exceeds its limits by a few percent at most."""

temporary_client_seconds_max: Final = 600.0
"""The time without a connection after which a server forgets a temporary client. The server would accept a repeated
publish of a forgotten client as new. Therefore a client that was disconnected for more than half of this time gives up.
The other half is a margin, because the two ends may notice a broken connection at different times."""

publish_window_max: Final = 65_536
"""Publishes of one client that the server has not accepted yet."""
publish_batch_max, publish_many_max = 1_024, 16_384
"""``publish_batch_max``: publishes in one part of a frame. ``publish_many_max``: notifications in one ``send_many``, a
quarter of ``publish_window_max``. After ``ready``, half of the window is free, so one ``send_many`` always fits."""
publish_to_max: Final = 4_096
"""Destinations of one publish of a client: the same number as ``topology_servers_max``. To reach more, use topics."""
publish_to_read_max: Final = 65_536
"""Destinations of one publish that a server can decode. This is more than ``publish_to_max``: the server can read the
sequence number of a publish that has too many destinations, and refuse only this publish."""
address_chars_max: Final = 200
"""The length of one destination. The address ``name@server`` with two names of 64 characters has 129 characters."""
type_chars_max: Final = 400
"""The length of the type of one notification: the name of a class or of an operation (see ``label_chars_max``)."""
session_parts_max: Final = 2_048
"""Parts of frames from one client that a server handles in one iteration of the event loop. Even if each part is a
refused publish, for which the server searches for similar names, other connections wait less than 100 ms."""
done_letters_max: Final = 1_024
"""Letters in one ``Done`` message of a client. A client has at most ``reactions_together_max`` letters at a time."""
request_arguments_max: Final = 8
"""Arguments of one request of an operator; no command has more than seven."""
deliver_bytes_wanted: Final = 1024 * 1024
"""The total size of letters that a server sends to a client together; a single larger letter is sent alone."""
trace_context_chars_max: Final = 128
"""The length of the context of one publish: a W3C trace context (55 characters today), and the label, cut to fit."""
notification_label_chars_max: Final = 80
"""The length of the label of one notification: one line of a terminal."""

trace_pending_letters_max: Final = 200_000
"""Letters that wait to be handled, while a log is converted to a trace. The class and the label of each letter are kept
(about 200 bytes). If more letters wait in mailboxes, the rows of the oldest letters lack these columns."""

metrics_request_bytes_max: Final = 8 * 1024
"""The size of the HTTP head of one request for a server's metrics page."""
metrics_connections_max: Final = 64
"""Requests for the metrics page that a server handles at one time. Above this limit, new connections are closed."""

live_seconds_max: Final = 30.0
"""``/live`` fails if the event loop of a server was blocked, or inputs waited for a step, for longer than this time.
This is twice the silence (15 s) after which peers and clients disconnect, and enough for a slow handler to end."""
orphan_seconds_max: Final = 30.0
"""A server that ``antecede up`` has started must stop within this time after ``antecede up`` has ended: 5 s for the
letters in the mailboxes, the rest for a snapshot. After this time the process exits at once; its log has everything."""

trace_retry_seconds: Final = 1.0
"""The first pause before a server repeats a failed conversion of its log. Each later pause is twice as long."""
trace_retry_seconds_max: Final = 60.0
"""The longest pause before a server repeats a failed conversion of its log."""
trace_segments_behind_max: Final = 8
"""A server logs a warning if this many closed segments of its log wait for the conversion to a trace."""

contested_runs_max: Final = 1_000_000
"""Ranges of event indices that are reported to the driver of a Spark job because several rows of a trace claim them."""
frame_rows_local_max: Final = 100_000
"""Rows of a DataFrame that are collected and judged in the driver, without a Spark job. They take about 20 MB, and
judging them takes less time than the start of a Spark job."""
walk_events_max: Final = 2_000_000_000
"""Events of a trace that one task reads alone: 16 GB on the disk of one machine. Several tasks read a larger trace."""
chunk_events_wanted: Final = 2_000_000
"""The wanted number of events per chunk, if a trace is divided by time into chunks that are verified separately."""
cut_entries_max: Final = 1_000_000
"""Entries of the table of cuts through a trace (cuts times processes). A task that moves the cuts gets this table."""
cut_rounds_max: Final = 40
"""Rounds in which cuts through a trace are moved back until they are consistent. Cuts that still move are dropped."""

crash_reports_max: Final = 20
"""Reports of internal errors that are kept per user: enough for a bug report. Without this limit, a program that fails
in a loop would fill the disk."""
crash_report_bytes_max: Final = 256 * 1024
"""The size of one crash report. A traceback of 200 calls takes about 30 KB, but the error text may have any length."""

unread_share_max: Final = 0.1
"""A trace counts as unreadable if more than this share of its rows cannot be read as events. A torn line per file or a
few rows of another program are common. But with one unreadable row in ten, the verdict does not mean much."""

report_processes_max: Final = 100
"""Processes in the traffic map of a report. All other processes together have one more row and one more column."""

mapping_bytes_max: Final = 64 * 1024
"""The size of one mapping file of an import: it has few lines, but a line may contain a long regular expression."""
pattern_line_chars_max: Final = 64 * 1024
"""The length of a line to search with a user's regular expression: even a quadratic search takes only seconds."""
pattern_seconds_max: Final = 2.0
"""The longest time for one search with a user's regular expression. Most take microseconds; some would take years."""

export_events_max: Final = {"perfetto": 1_000_000, "otlp": 1_000_000, "shiviz": 50_000, "dot": 2_000, "mermaid": 400}
"""Events of one exported trace, by format. Perfetto and collectors accept files of some 500 MB. ShiViz keeps all events
in one web page. A person could not read a larger DOT graph. Mermaid refuses texts of more than 50,000 characters."""
preview_records_max: Final = 10_000
"""Records that ``import --preview`` examines: enough to show every kind of record, in about a second."""
mapped_kinds_max: Final = 1_000
"""Kinds of records that an import counts. A field with more different values contains free text, not kinds."""

plan_multicasts_max: Final = 20_000
"""Different multicasts that a plan considers. If there are more, the most frequent ones represent all, so that the cost
of one plan can be computed in milliseconds."""
plan_work_max: Final = 1.2e10
"""Elementary steps of one search for domains: about a minute on two cores, for any number of servers."""
plan_front_max: Final = 12
"""Plans on the Pareto front that are reported: more would not help a person to choose."""
plan_sample_messages_max: Final = 200_000
"""Messages that the simulator replays to check the cost of a plan; then the error of the mean is about one percent."""
plan_file_bytes_max: Final = 256 * 1024 * 1024
"""The size of one file of traffic, of processes with their servers, or of pins. All pairs of 4,096 servers fit."""
plan_break_even_servers_max: Final = 1_024
"""The largest number of servers that is tried in the search for the break-even point: the number of servers from which
several domains cost less than one flat domain, with uniform traffic."""

sweep_cells_max: Final = 100_000
"""Cells of one sweep. Each cell is one simulated run; if each run takes a second, all take about a day."""
sweep_seeds_max: Final = 10_000
"""Runs of one setting, with different seeds: half the confidence interval is then 1/50 of the standard deviation."""
sweep_scale_max: Final = 100.0
"""The largest factor by which a study may be longer than in its paper; a larger factor is probably a typing error."""
sweep_file_bytes_max: Final = 1024 * 1024
"""The size of one file with the axes of a grid: a thousand values of each axis fit."""
