"""All limits of the project in one table. The name of each limit contains its unit.

A limit exists so that no input from outside (a stamp, a frame, a trace, a scenario) can make the program use memory or
time without end. Each limit has a test with a value at the limit. The text below a limit says what is limited.

Some words that the texts below use:

* A *letter* is a notification with its envelope: sender, destinations, type and further fields.
* A *step* of a server handles some inputs. The server writes one record per step to its log.
* A *link* connects two servers of one domain. A *link frame* is one numbered packet of a link.
* A *frame of a connection* is a message on a TCP connection. The frame consists of *parts*.
* A *hello* is the part in which one end of a connection sends its name and its protocol version.
* A *stamp* is the control information that an ordering protocol adds to a message.
"""

from typing import Final

members_max: Final = 4_096
"""The largest number of members of one domain. A set of destinations is stored as a bit mask with one bit per
member."""
stamp_bytes_max: Final = 4 * 1024 * 1024
"""The largest size of one encoded stamp, in bytes. A full matrix of 1,024 members with three-byte counters has 3
MiB."""

counter_max: Final = 2**63 - 1
"""The largest value of any message counter."""
counter_jump_max: Final = 2**32
"""The largest amount by which a counter in a received stamp or frame may exceed the last known value of this counter.
The limit is about 4,000 million messages."""

link_window_frames_max: Final = 65_536
"""The largest number of frames in the window of a link. The receiver's window begins at the first frame that the
receiver has not accepted. The sender's window begins at the first frame that is not acknowledged."""
link_resend_first_seconds: Final = 0.2
"""The time after which a simulated link sends an unacknowledged frame for the second time. Each later wait is twice as
long. Links between servers use ``peer_resend_seconds`` instead."""
link_resend_seconds_max: Final = 10.0
"""The longest time between two resends of the same frame by a link."""
link_resend_frames_max: Final = 1_024
"""The largest number of frames that one call of a link's ``tick`` may resend."""

topology_bytes_max: Final = 4 * 1024 * 1024
"""The largest size of one topology file, in bytes."""
topology_servers_max: Final = 4_096
"""The largest number of servers in one topology. The same limit holds for the number of domains in one topology."""
topology_drawn_servers_max: Final = 1_024
"""The largest number of servers in a topology that can be drawn. A person could not read a larger drawing."""
changes_kept_max: Final = 1_000
"""The largest number of changes of the topology that a server remembers. With one change per day, the number is enough
for more than two years."""
change_number_max: Final = 2**32 - 1
"""The largest sequence number of a change of the topology. With one change per second, the number is enough for a
century."""
clock_ms_max: Final = (2**63 - 1) // 1_000_000
"""The latest allowed time of a wall clock, in milliseconds since 1970. This time is in the year 2262. If a later time
were converted to nanoseconds, it would not fit into 64 bits."""
mark_chars_max: Final = 64
"""The largest length of an id, in characters. The limit holds for the id of a system, for the id of an attempt to
change the topology, and for an epoch (the hash of a topology). Today, these ids have 16 hexadecimal digits."""
name_chars_max: Final = 64
"""The largest length of the name of a server, a domain or an agent, in characters."""
lesson_bytes_max: Final = 2 * topology_bytes_max
"""The largest size of the JSON text in one lesson, in bytes. A server sends a *lesson* to another server that has
missed changes of the topology. The text contains the topology and its history."""
change_page_bytes: Final = 256 * 1024
"""The largest size of one page of data, in bytes. When agents and clients move to another server, their data is sent in
such pages."""
change_bytes_max: Final = 1024 * 1024 * 1024
"""The largest size of all data that one change of the topology moves to one server, in bytes. The server keeps this
data in memory. The limit is four times ``backlog_letter_bytes_max``."""
change_idle_seconds_max: Final = 15.0
"""The longest time that a server waits for the next command of a change of the topology. Usually a command comes every
tenth of a second. The pause is longer only while a server imports much data. After this time, the server abandons the
change. Exception: suppose that the server has *staged* the change (written it to its log), and that another server is
the coordinator of the change. Then the server asks the coordinator (see ``change_ask_seconds``)."""
change_ask_seconds: Final = 2.0
"""The time that a server waits for the decision about a change of the topology. After this time, the server asks the
coordinator of the change. If the decision still does not come, the server asks again after the same time."""
change_command_seconds_max: Final = 60.0
"""The longest time for one command of a change of the topology. Only a server that is blocked needs more time."""
change_look_seconds_max: Final = 15.0
"""The longest time for a short command during a change of the topology. Such a command only reads data, or abandons the
change."""
removed_seconds: Final = 10.0
"""The time for which a server keeps running after a change of the topology has removed the server. During this time,
the clients of the server learn the address of their new server."""

label_chars_max: Final = 400
"""The largest length of two kinds of names, in characters: the name of an operation, and the name of an *instance* (one
execution of an operation). The name of an instance is a path with one number per level of nested calls, such as
``P1.3/2/1``."""

roots_rival_max: Final = 2
"""The largest number of conflicting operations of users that one object or server runs at the same time. One operation
is executed, and the other one is next. All further operations wait, and several of them can later share one request to
the object. If these operations ran at the same time, they would only make each other abort."""
roots_running_max: Final = 1_024
"""The largest number of operations of users, conflicting or not, that one object or server runs at the same time."""
roots_running_bytes_max: Final = 16 * 1024 * 1024
"""The largest total size of the arguments of all operations of users that one object or server runs at the same time,
in bytes. Every replica keeps a copy of these arguments. An operation with larger arguments runs alone."""
shared_calls_max: Final = 256
"""The largest number of users' calls that one request to an object contains. A replica computes all these calls in one
step. All other work of the server waits until the step ends, so the step must be short."""
shared_nested_max: Final = 8
"""The largest number of users' calls that one request to an object contains, if these calls make nested calls to other
objects. The number is small because all calls of the request are computed again after each answer to a nested call."""
shared_calls_bytes_max: Final = 256 * 1024
"""The largest total size of the arguments of all calls in one request to an object, in bytes. A call with larger
arguments is sent alone."""
nesting_depth_max: Final = 32
"""The largest number of levels of nested calls between objects. A call at a deeper level fails."""
ended_instances_max: Final = 4_096
"""The largest number of failed and aborted operation instances that an object remembers. The object remembers these
instances so that a late request does not start one of them again."""
calls_open_max: Final = 20_000
"""The largest number of unfinished calls to objects at one server, including the calls that still wait to begin. Above
this limit, further calls from clients are refused."""
call_seconds_max: Final = 86_400
"""The longest time that a call of a replicated object may take. A longer call is aborted."""
call_depth_max: Final = 64
"""The largest number of levels of nested lists and dictionaries in the arguments of one call, in the answer to one
call, or in the state of one object."""
object_state_bytes_max: Final = 32 * 1024 * 1024
"""The largest size of the state of one replicated object, in bytes. Snapshots write the state as a whole. An operation
fails if the new state is larger."""
reason_chars_max: Final = 2_000
"""The largest length of a reason, in characters: the reason that the callers of a failed operation receive, the reason
of a dead letter, or the reason with which a server closes a connection to another server."""

train_letters_max: Final = 1_024
"""The largest number of letters in one train. A train is one message of a domain; it contains one or several letters.
The log format depends on the three ``train_`` limits."""
train_copies_max: Final = 32_768
"""The largest total number of destinations of all letters in one train (see ``train_letters_max``). The destinations
are counted for each letter, even if several letters share one list of destinations. If too many letters wait at a
server (``backlog_letters_max``), the server stops reading from its peers. But it still handles the few trains that it
has already read. One such train adds at most a sixth of ``backlog_letters_max`` letters."""
train_bytes_max: Final = 1024 * 1024
"""The largest size of one train of letters (see ``train_letters_max``), in bytes. A single larger letter is sent
alone."""
letter_bytes_max: Final = 8 * 1024 * 1024
"""The largest size of one encoded notification, in bytes. The same limit holds for the encoded arguments of one call,
and for the encoded answer. A server keeps several such values in memory for each connection."""
shared_addresses_max: Final = 262_144
"""The largest total number of addresses in the lists of destinations that a server remembers. Above this limit, the
server forgets all lists."""
message_id_chars_max: Final = 200
"""The largest length of the id of one message, in characters."""

reactions_together_max: Final = 256
"""The largest number of letters that one agent or client gets as one batch. The reactions of an agent to one batch are
committed together."""
background_failures_max: Final = 5
"""If background work of a server (for example its housekeeping) fails this often, ``/live`` reports it."""
background_failure_seconds: Final = 60.0
"""The time after which a failure of background work is forgotten, unless the work fails again."""
uncollected_bytes_max: Final = 64 * 1024 * 1024
"""The bytes of handled letters after which a server runs the garbage collector. The collector counts objects, so
otherwise handlers that leave reference cycles could keep many long letters in memory."""
reactions_together_seconds: Final = 0.003
"""The time after which a server ends a batch of slow handlers early, and serves other agents and connections. Otherwise
256 handlers of one millisecond each would stop the server for a quarter of a second. If this time were shorter, an
overloaded server would spend more of its time on the refusal of publishes."""

timer_seconds_max: Final = 100 * 366 * 86_400
"""The longest time of an agent's timer, and the longest timeout of a question that an agent asks. The limit is a
hundred years."""
timers_together_max: Final = 1_024
"""The largest number of timers that fire in one step of a server."""

frame_bytes_max: Final = 64 * 1024 * 1024
"""The largest size of one frame on a connection between authenticated servers, in bytes. A train of letters (see
``train_letters_max``) with its stamp and envelope fits easily."""
client_frame_bytes_max: Final = 10 * 1024 * 1024
"""The largest size of one frame from a client, in bytes. A client library begins a new batch at 1 MiB, and the last
notification of a batch may have 8 MiB. Together with the envelopes and ``publish_to_max`` addresses, a batch has less
than 10 MiB."""
frame_parts_max: Final = 65_536
"""The largest number of parts in one frame of a connection. A full frame has 1 MiB, and each publish or acknowledgement
in the frame has more than 16 bytes, so more parts do not fit."""
frame_entries_max: Final = 131_072
"""The largest number of packets in one part of a frame between servers. A full part has 1 MiB, and each packet has more
than 8 bytes, so more packets do not fit."""
frame_bytes_wanted: Final = 1024 * 1024
"""The usual length of a full frame of a connection, in bytes. Parts that are ready at the same time share frames of
about this length."""

hello_bytes_max: Final = 16 * 1024
"""The largest size of one frame that is read before the hello is accepted, in bytes. A hello has a token and three
names. A hello of a server also has less than 160 bytes per shared domain. The first request of an operator has only
short arguments."""
token_bytes_max: Final = 4 * 1024
"""The largest size of one token, in bytes. The limit is a quarter of ``hello_bytes_max``."""
token_chars_min: Final = 32
"""The smallest allowed length of the servers' token, in characters, if other machines can reach the servers and there
is no access file. A random token of this length cannot be guessed."""

proof_bytes_max: Final = 128
"""The largest size of one field of a proof of identity, in bytes. A field contains a nonce (32 bytes), or the
signatures with one or two keys (64 bytes each)."""
access_bytes_max: Final = 4 * 1024 * 1024
"""The largest size of one access file, in bytes."""
identities_max: Final = 10_000
"""The largest number of identities of one role in an access file. The number is larger than the number of clients that
can be connected to a server at the same time."""
patterns_max: Final = 1_000
"""The largest number of entries in one list of an access file. The entries are keys, names or patterns."""
pattern_chars_max: Final = 400
"""The largest length of one name or pattern in an access file, in characters."""
permissions_cached_bytes_max: Final = 1024 * 1024
"""The largest size of the permission decisions that a client's session remembers, in bytes of memory. Above this limit,
the session forgets all of them."""
addresses_watched_max: Final = 10_000
"""The largest number of network addresses for which a server counts the attempts to connect. The counts take about 3
MB. Above this limit, the server forgets the address that has made no attempt for the longest time."""
audit_bytes_max: Final = 16 * 1024 * 1024
"""The largest size of one file of the audit log, in bytes. There are two files: the current file and the previous
file."""
audit_refusals_per_second: Final = 20.0
"""The largest number of refusals per second that the audit log records. Without this limit, repeated attempts of
unknown programs would displace all other entries."""

hello_seconds_max: Final = 10.0
"""The longest time that a new connection may take to identify itself."""
connections_max: Final = 4_096
"""The largest number of incoming connections of one server at the same time. The number is smaller if the operating
system does not allow the process to open enough files."""
strangers_max: Final = 512
"""The largest number of *strangers* of one server: incoming connections without an accepted hello. Connections in a TLS
handshake are included. Above this limit, the server closes the oldest stranger for each new connection. Correct
programs send their hello immediately, so the number of strangers is small even if thousands of programs reconnect."""
strangers_address_max: Final = 256
"""The largest number of strangers (see ``strangers_max``) from one network address. The limit is half of
``strangers_max``, so that one host cannot keep all other hosts out."""
unfinished_bytes_max: Final = 256 * 1024 * 1024
"""The largest total size of the incomplete frames that a server keeps, in bytes. The frames come from clients and from
strangers (see ``strangers_max``). The limit is enough for 25 frames of full length. Above this limit, the server closes
the connection with the oldest incomplete frame."""
unfinished_address_bytes_max: Final = 128 * 1024 * 1024
"""The largest total size of the incomplete frames from one network address, in bytes. The limit is half of
``unfinished_bytes_max``."""
descriptors_wanted: Final = 16_384
"""The largest number of open files that a server process requests from the operating system. The process needs up to
``connections_max`` of them for incoming connections, and up to the same number for connections to peers. The
application in the same process may need some thousands more."""
descriptors_reserved: Final = 160
"""The number of file descriptors of a server process that are not used for incoming connections. 64 descriptors are for
the metrics page. The others are for the log, the snapshots, the process that converts the trace, and the event loop."""
accept_retry_seconds: Final = 0.5
"""The time for which a server accepts no connections after an attempt to accept a connection has failed, for example
because the server had no free file descriptor."""

write_buffer_bytes_max: Final = 8 * 1024 * 1024
"""The largest number of bytes that may wait to be sent on one connection. Above this limit, nothing more is written
until the other end has read."""
heartbeat_seconds: Final = 5.0
"""The longest time for which one end of a connection sends nothing. After this time, that end sends a keep-alive. If an
end receives nothing for a period three times as long, it disconnects."""
dial_seconds_max: Final = 5.0
"""The longest pause between two tries to reach a peer."""
deferred_frames_max: Final = 8_192
"""The largest number of link frames and acknowledgements that wait because the connection to a peer is full. Further
ones are dropped. The link sends the dropped frames again later."""
peer_resend_seconds: Final = 5.0
"""The time after which an unacknowledged link frame is sent again to a connected peer. Connections rarely lose
frames."""

reaction_tries_max: Final = 5
"""The largest number of tries to handle one letter. If all tries fail, the letter becomes a dead letter."""
reaction_pause_seconds: Final = 0.1
"""The pause before the second try to handle a letter. Each later pause is twice as long."""
tried_letters_max: Final = 1_000
"""The largest number of letters for which a server keeps a count. The count shows how often the process of the server
ended while the letter was being handled. A count is deleted when the letter is handled or dead. Above this limit, the
oldest count is deleted."""
calls_named_max: Final = 65_536
"""The largest number of handler calls in progress that a server records. After a crash, the records (1 KiB each) show
which calls were in progress. Only calls of ``async`` handlers can reach this number, because plain handlers run one at
a time."""
reaction_slow_seconds: Final = 5.0
"""The longest time that a handler may block the event loop without a log message. After this time, the server logs the
handler with its stack."""
reaction_seconds_max: Final = 300.0
"""The longest time of one reaction to a letter, if the topology sets no limit. The time is ten times
``live_seconds_max``."""
reaction_seconds_limit: Final = 86_400.0
"""The largest value that a topology may set as the limit for the time of one reaction (see
``reaction_seconds_max``)."""
agent_state_bytes_max: Final = 32 * 1024 * 1024
"""The largest size of the state of one agent, in bytes. Each reaction may write the state as a whole. A reaction fails
if the new state is larger."""
worker_start_seconds_max: Final = 60.0
"""The longest time that the worker process of an isolated agent may take to start and to import the class of the
agent."""

step_bytes_max: Final = 4 * 1024 * 1024
"""The total size of the inputs, in bytes, after which one step of a server takes no more inputs. The last input may
bring the total above this size."""
step_letters_max: Final = 65_536
"""The largest number of copies of letters that one step of a server makes for publishes. (A letter has one copy for
each destination.) The copies take about a tenth of a second. A batch to many destinations is divided among several
steps."""
record_piece_bytes_max: Final = 8 * 1024 * 1024
"""The largest size of one piece of a step's record in the log, in bytes. A longer record is stored in several pieces.
The log numbers each piece like a record."""

backlog_frames_max: Final = 16_384
"""The largest number of a server's link frames that are not acknowledged by peers yet. Above this limit, the server
refuses the publishes of clients."""
backlog_bytes_max: Final = 256 * 1024 * 1024
"""The largest total size of a server's link frames that are not acknowledged by peers yet, in bytes of memory. Above
this limit, the server refuses the publishes of clients."""
backlog_letters_max: Final = 200_000
"""The largest number of letters in all mailboxes of a server together. Letters that are held (because of a dead letter,
or during a change of the topology) are included. Above this limit, the server refuses the publishes of its clients and
reads nothing from its peers. Then the peers also become full and refuse the publishes of their clients."""
backlog_letter_bytes_max: Final = 256 * 1024 * 1024
"""The largest total size of the letters in mailboxes, the held letters and the timers of a server, in bytes of memory.
The limit is a quarter of the memory of a machine with 1 GiB. A multicast is counted only once, together with the list
of its destinations."""

mailbox_letters_max: Final = 50_000
"""The largest number of letters in the mailbox of one client, by default. The limit is a quarter of
``backlog_letters_max``. Above this limit, the oldest letters expire first."""
mailbox_bytes_max: Final = 64 * 1024 * 1024
"""The largest total size of the notifications in the mailbox of one client, in bytes, by default. The limit is a
quarter of ``backlog_letter_bytes_max``. Above this limit, the oldest letters expire first."""
mailbox_clients_share_max: Final = 0.5
"""The largest share of ``backlog_letters_max`` and ``backlog_letter_bytes_max`` that the mailboxes of all clients of a
server may fill together. Above this share, the oldest letters of clients expire, so that absent clients alone never
fill a server."""
client_return_seconds: Final = 60.0
"""The shortest time after which letters that were handed to a client can expire. The time begins again at each of these
events: the client receives a letter, reports a handled letter, or disconnects. A client needs less time than this to
notice a broken connection and to connect again."""

dead_letters_max: Final = 200_000
"""The largest number of dead letters that a server keeps. The number equals ``backlog_letters_max``. Above this limit,
the oldest dead letters are deleted."""
dead_letter_bytes_max: Final = 256 * 1024 * 1024
"""The largest size of all dead letters that a server keeps, in bytes of memory. Above this limit, the oldest dead
letters are deleted."""
dead_page_letters_max: Final = 1_000
"""The largest number of dead letters that one request of an operator lists or sends again. The same limit holds for the
number of clients that one request lists."""
dead_page_examined_max: Final = 20_000
"""The largest number of dead letters that one request of an operator examines. With this limit, the step for the
request takes only some milliseconds."""
dead_page_bytes_max: Final = 1024 * 1024
"""The largest total size of the dead letters that one request of an operator finds, in bytes. With this limit, the
record of the request in the log and the answer to the request stay short."""
drop_letters_max: Final = 10_000
"""The largest number of letters that one request deletes, or that expire together from one mailbox. With this number of
letters, the record in the log has about 1 MiB, and the step that makes the record takes about 20 ms."""
dead_shown_bytes_max: Final = 4 * 1024 * 1024
"""The largest total size of a dead letter's fields, in bytes of JSON, that is shown to an operator. If all fields
together are larger, none of them is shown. The limit is half of ``letter_bytes_max``."""
backlog_unwatched_bytes_max: Final = 4 * 1024 * 1024
"""The largest number of bytes that a server writes to the log between two checks of its backlog. After this number of
bytes, the server checks the backlog even if little time has passed since the last check. The number equals the size of
one step, so the backlog exceeds its limits in bytes by a few percent at most."""
backlog_unwatched_letters_max: Final = 32_768
"""The largest number of letters that come into mailboxes between two checks of the backlog. The log contains a
multicast only once, so a few kilobytes of the log can be millions of letters. The limit is half of
``step_letters_max``. So if a step makes the largest allowed number of copies, the backlog is checked after this
step."""

temporary_client_seconds_max: Final = 600.0
"""The time for which a server remembers a temporary client that has no connection. After this time, the server forgets
the client, and would accept a repeated publish of this client as new. Therefore a client that was disconnected for more
than half of this time gives up. The other half is a margin, because the two ends may notice a broken connection at
different times."""

publish_window_max: Final = 65_536
"""The largest number of publishes of one client that the server has not accepted yet."""
publish_batch_max, publish_many_max = 1_024, 16_384
"""The largest number of publishes in one part of a frame (``publish_batch_max``), and the largest number of
notifications in one ``send_many`` (``publish_many_max``). The second limit is a quarter of ``publish_window_max``. When
``await bus.ready()`` has returned, at least half of the window is free, so one ``send_many`` always fits."""
publish_to_max: Final = 4_096
"""The largest number of destinations of one publish of a client. The number equals ``topology_servers_max``. Use topics
to reach more destinations."""
publish_to_read_max: Final = 65_536
"""The largest number of destinations of one publish that a server can decode. The number is larger than
``publish_to_max``, so that the server can read the sequence number of a publish that has too many destinations. Then
the server refuses only this publish."""
address_chars_max: Final = 200
"""The largest length of one destination, in characters. The address ``name@server`` with two names of 64 characters has
129 characters."""
type_chars_max: Final = 400
"""The largest length of the type of one notification, in characters. The type is the name of a class or of an operation
(see ``label_chars_max``)."""
session_parts_max: Final = 2_048
"""The largest number of parts (such as publishes) from one client that a server handles in one iteration of the event
loop. Other connections then wait less than 100 ms. This is true even in the slowest case: each part is a refused
publish, and the server searches for similar names."""
done_letters_max: Final = 1_024
"""The largest number of letters in one ``Done`` message of a client. A client has at most ``reactions_together_max``
letters at a time."""
request_arguments_max: Final = 8
"""The largest number of arguments of one request of an operator. Every command has at most seven arguments."""
deliver_bytes_wanted: Final = 1024 * 1024
"""The largest total size of the letters that a server sends to a client together, in bytes. A single larger letter is
sent alone."""
trace_context_chars_max: Final = 128
"""The largest length of the context of one publish, in characters. The context is a W3C trace context (55 characters
today), followed by the label of the notification. If the context would be too long, the label is shortened."""
notification_label_chars_max: Final = 80
"""The largest length of the label of one notification, in characters. A label of this length fits into one line of a
terminal."""

metrics_request_bytes_max: Final = 8 * 1024
"""The largest size of the HTTP head of one request for a server's metrics page, in bytes."""
metrics_connections_max: Final = 64
"""The largest number of requests for the metrics page that a server handles at the same time. Above this limit, new
connections are closed."""

live_seconds_max: Final = 30.0
"""The longest time for which the event loop of a server may be blocked, or inputs may wait for a step. After a longer
time, the page ``/live`` reports a failure. The limit is enough for a slow handler to end. If peers and
clients receive nothing for half of this time (15 s), they disconnect."""
orphan_seconds_max: Final = 30.0
"""The longest time that a server of ``antecede up`` may take to stop after ``antecede up`` has ended. Of this time, 5 s
are for the letters in the mailboxes, and the rest is for a snapshot. After this time, the process exits immediately. No
data is lost, because the log of the server contains all data."""

crash_reports_max: Final = 20
"""The largest number of reports of internal errors that are kept per user. The number is enough for a bug report.
Without this limit, a program that fails in a loop would fill the disk."""
crash_report_bytes_max: Final = 256 * 1024
"""The largest size of one report of an internal error, in bytes. A traceback of 200 calls takes about 30 KB, but the
error text may have any length."""

# The log and the snapshots of a server, and the log messages that people read. The log of a server is divided into
# files, the *segments*. Its records are written in *groups*: all records of a group are written and made durable
# together.

snapshot_log_bytes: Final = 128 * 1024 * 1024
"""The number of bytes that a server writes to its log between two snapshots. A server that starts can replay this
number of bytes in a few seconds."""
snapshot_records: Final = 200_000
"""The number of records that a server writes to its log between two snapshots, if ``snapshot_log_bytes`` is not reached
earlier. A server that starts can replay this number of records in some seconds."""
snapshot_retry_seconds: Final = 10.0
"""The pause before a server tries to take a snapshot again after a failure. The usual causes, a full disk or a lack of
file descriptors, usually last for seconds."""
snapshot_build_seconds_max: Final = 1_800.0
"""The longest time that a separate process may take to build a snapshot. After this time, the server ends the process.
A build takes about as long as a start of the server."""
snapshot_builds_max: Final = 3
"""The number of consecutive failed snapshots after which the server builds the snapshot itself. Before that, a separate
process builds each snapshot. While the server builds a snapshot itself, it does no other work."""

witness_after_seconds: Final = 0.1
"""The shortest time between a record in the log and the next *empty* group (a group without records). A server writes
an empty group when the server has nothing else to write. After a crash, the empty group proves that the records before
it were durable. The time is short, so the empty group is usually written before an operator kills an idle server."""
witness_seconds: Final = 1.0
"""The shortest time between two empty groups in the log (see ``witness_after_seconds``). Each empty group needs one
sync. One sync per second has no noticeable cost, even under high load."""

log_lines_per_second: Final = 10
"""The largest number of log messages of a server per second about one kind of event. An operator cannot read more, and
even a busy server normally writes fewer messages."""
log_text_chars_max: Final = 400
"""The largest length of one text in a log message of a server, in characters. The length is limited because the text
may come from another process."""
log_traceback_chars_max: Final = 20_000
"""The largest length of one traceback in a log message, in characters. The length is limited because the text of an
exception may have any length. If a traceback is longer, only its beginning and its end are kept."""
log_report_seconds: Final = 10.0
"""The shortest time between two log messages that report how many messages were left out."""

store_group_bytes_max: Final = 16 * 1024 * 1024
"""The largest size of one commit group of a log, in bytes. The size includes all records of the group with their
lengths. So this limit is also a limit for the size of one record."""
store_segment_bytes: Final = 64 * 1024 * 1024
"""The largest size of one segment of a log, in bytes. The log allocates the space for the whole next segment before the
current segment is full."""
store_segment_bytes_first: Final = 1024 * 1024
"""The size of the first segment of a log, in bytes. The first segment is small so that small logs stay small. Each
later segment has twice the size of the previous segment, up to ``store_segment_bytes``."""
store_pending_bytes_max: Final = 32 * 1024 * 1024
"""The largest total size of the records that were appended to a log but are not written yet, in bytes. These records
must fit into one segment."""
store_log_bytes_max: Final = 16 * 1024 * 1024 * 1024
"""The largest size of all segments of one log together, in bytes. The segment that is allocated in advance is
included."""
store_snapshot_bytes_max: Final = 64 * 1024 * 1024 * 1024
"""The largest size of one snapshot with all its parts, in bytes."""
store_snapshot_part_bytes_max: Final = 1024 * 1024 * 1024
"""The largest size of one part of a snapshot, in bytes. A part must be in memory as a whole."""
store_snapshot_part_bytes_wanted: Final = 64 * 1024 * 1024
"""For a snapshot, a state is cut into parts of at most this size, in bytes. But only a state that is one long sequence
of bytes is cut. The limit equals ``store_segment_bytes``. It is much smaller than
``store_snapshot_part_bytes_max``, and large enough to give few parts."""
store_commit_here_bytes_max: Final = 64 * 1024
"""The largest number of bytes that the owner of a log (the server) commits in its own thread. The commit thread commits
larger amounts."""
store_quick_sync_seconds: Final = 0.001
"""The longest time of a quick sync of the log. If most syncs take longer, the commit thread does all commits."""
store_retry_seconds: Final = 0.1
"""The shortest time between two checks whether a full disk has space again. A refused record causes such a check."""

backup_hold_seconds_max: Final = 5.0
"""The longest time for which a server accepts nothing from its peers at the beginning of a backup. During this time,
the server must receive the command that determines which state is copied. Without this command, the server gives up the
backup."""
backup_idle_seconds_max: Final = 120.0
"""The longest time that a server waits for the next command of a backup. After this time, the server ends the backup,
because the kept files of a forgotten backup would fill the disk."""
backup_page_bytes: Final = 1024 * 1024
"""The largest number of bytes of a backup that one request reads. Reading these bytes keeps the event loop busy for a
few milliseconds."""

# Simulations, and traces: their import, conversion, verification and export, and the plans and reports from traces.

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
