"""The meaning of each log event. docs/reference/log-events.md is made of it; names are never reused."""

from typing import Final

EVENTS: Final[dict[str, str]] = {
    # deliveries
    "attempt": "The relay made a request to a receiver or callback; the fields have the outcome. Only in `relay dev`.",
    "poll": "The relay asked a status endpoint for an answer; the fields have the outcome. Only in `relay dev`.",
    "dead_letter": (
        "The relay gave a message up, for `reason` and `detail`, and put it on `failed_messages`. After the cause is"
        " fixed, replay it."
    ),
    "held_up": (
        "A message to `receiver` has failed at least three times, and `waiting_behind` later ones wait for it. Find"
        " out why the receiver rejects it; cancelling or discarding it lets the others continue."
    ),
    "endpoint_offline": (
        "A receiver or callback has been down for `offline.after`. It gets only pings; messages wait until it answers"
        " one."
    ),
    "endpoint_back": "A receiver or callback that was offline answers again. The messages that waited are sent.",
    "endpoint_disabled": (
        "A receiver or callback was down for `offline.disable_after` and is now paused. Fix it, then resume it."
    ),
    "endpoint_gone": "A receiver or callback returned 410 and is now paused. If it should get messages, resume it.",
    "receiver_tested": "A test request was sent to a receiver.",
    "callback_tested": "A test request was sent to the callback of a source.",
    "receiver_verification": "The relay tried to verify the URL of a receiver; `said` is the result.",
    "verification_waits": "The verification of a receiver cannot run or be stored yet, and will be retried.",
    "verifications_wait": "No verification can run yet; all will be retried.",
    # dependencies
    "waiting": (
        "Kafka, Redis or the history does not answer. Nothing is sent until it does; the relay then continues without"
        " help."
    ),
    "away": "`part` of this process cannot work, for `error`. It is retried until it works, and `back` is logged.",
    "back": "`part` of this process works again, after `away`.",
    "sending_paused": (
        "This process has no descriptors, memory or local ports left, or no name server answers (`kind`). It sends"
        " nothing for a few seconds, then tries again. Raise the limit, or spread the load over more machines."
    ),
    "sending_again": "This process sends again, after `sending_paused`.",
    "state_problem": "A setting of Redis may cause duplicates or let its memory run out; `problem` has the fix.",
    "topic_problem": "A setting of a topic may lose or reorder messages; `problem` has the fix.",
    "topics_right_again": "The problems of the topics are fixed.",
    "dedup_window_short": (
        "`RELAY_DEDUP_WINDOW` is shorter than the retention of `from_sender`. A message that is read again after the"
        " window would be delivered again. Raise the one or lower the other."
    ),
    "right_missing": "This user lacks a right on Kafka that will be needed later; `problem` has the command for it.",
    "shared_work_left": (
        "This user lacks the rights for the jobs that one process does for the whole cluster (`what`). A process with"
        " these rights does them."
    ),
    "clock_off": "The clocks of this machine and of Redis are more than 30 s apart. Set both by NTP.",
    "clock_right": "The clocks of this machine and of Redis agree again.",
    "state_clock_set_back": (
        "The clock of Redis was set back by `seconds`. Nothing has to be done: rates, pauses and retries are not"
        " affected."
    ),
    # incidents
    "incident_opened": (
        "The relay found a cause of failures. `/ui/incidents/<incident>` shows what is affected and how to fix it."
    ),
    "incident_resolved": "An incident is over. `by` is who resolved it, unless it ended without help.",
    "notice_not_sent": (
        "A notice about incidents could not be sent to `channel` and is given up. Check the settings of that channel."
    ),
    # loss of the state
    "state_not_ready": (
        "Redis has lost its data, or another server answers at its address. The lanes in question stop until the state"
        " is recovered from the log."
    ),
    "recovery_begun": "The relay starts to restore the references of parked messages from the log.",
    "state_recovered": "The references of parked messages are restored, and the lanes continue.",
    "parked_references_missing": "References of parked messages were missing in Redis, and were restored from the log.",
    "rebuild_begun": (
        "The relay starts to rebuild its memory of finished messages from the topics, in the background. Until it is"
        " complete, a repeated message may be delivered again."
    ),
    "rebuild_progress": "How far the rebuild of the memory of finished messages is.",
    "rebuilt": "The memory of finished messages is complete again.",
    "rebuild_failed": "The rebuild of the memory of finished messages failed, for `error`. It is retried.",
    # lanes
    "fenced": "Another process now owns a partition of this one, and finishes its remaining work.",
    "former_owner_died": (
        "The former owner of a partition crashed. Its unfinished records are handled one by one, because one may be"
        " the cause."
    ),
    "lane_anew": "This process lost a partition while it worked on it, and opens its lane again.",
    "lane_broken": "A bug in the relay broke a lane, which starts again. Please report it.",
    "lane_stalled": (
        "A record is unfinished for longer than any step takes, so the offsets behind it are not committed. Restart"
        " the process, which loses nothing, and report it."
    ),
    "step_crashed": (
        "A bug in the relay made a step fail. The record is retried, and after a few attempts dead-lettered as"
        " `poison`. Please report it."
    ),
    "offsets_skipped": (
        "A part of a batch on Kafka is corrupt and was skipped. A dead letter has its offsets; have the sender send"
        " these messages again."
    ),
    "log_truncated": (
        "Kafka lost acknowledged records, and other records have their offsets now. Those are read;"
        " `docs/runbooks/RelayLogTruncated.md` shows how to find the lost ones."
    ),
    "offset_missing": (
        "A committed offset does not exist: its topic was recreated, its records were deleted, or Kafka does not know"
        " the group. Reading continues at the first record that exists."
    ),
    "consumer_broken": "Reading from Kafka failed, for `error`, and starts again.",
    "consumer_close": (
        "A consumer could not leave its group cleanly. Kafka assigns its partitions to others after the session"
        " timeout; nothing has to be done."
    ),
    "parked_many": (
        "Half of the messages that may be parked (`RELAY_PARKED_TOTAL`) are. At the limit, intake stops: find receivers"
        " that are down, or raise it."
    ),
    "transaction_open": (
        "A producer's open transaction holds back the records behind it in its partition. Find the producer, or wait"
        " until its `transaction.timeout.ms` is over."
    ),
    "unread_records_old": (
        "Unread records will soon be deleted by retention, and their messages lost. Start or repair the consumer, or"
        " raise `retention.ms`."
    ),
    "move_begun": "A receiver starts to move to another lane, or to get more partitions.",
    "move_ended": "The move of a receiver to another lane is complete.",
    "move_refused": "A receiver cannot move to another lane; `problem` says why, and what to change.",
    "move_waits": "The move of a receiver cannot continue yet, and will be retried.",
    "moves_wait": "No move of a receiver can continue yet; all will be retried.",
    "receiver_left": "The lanes of a removed receiver are empty; its topics may be deleted.",
    # receivers and keys
    "receivers_applied": "The receivers file was applied: these entries were added, changed or removed.",
    "receivers_file_refused": "The receivers file has a mistake. Its former content stays in effect; correct it.",
    "receivers_file_entry_refused": "An entry of the receivers file was rejected; the others were applied.",
    "receivers_file_gone": "The receivers file no longer exists. Its entries stay in effect.",
    "receivers_file_missing": "There is no receivers file. Only receivers registered over the API are in effect.",
    "receivers_unknown": (
        "`--receivers-only` or `--receiver` names receivers that do not exist: check the spelling. They are served"
        " once they are registered."
    ),
    "receiver_config_entry_refused": (
        "The entry of a receiver or source cannot be used by this process: `problem` names the missing variable, file"
        " or key. Its messages wait, or use its former entry."
    ),
    "receiver_config_more_refused": "Many entries cannot be used by this process; only the first ones are logged.",
    "receiver_config_record_without_key": "A record on `receiver_config` has no key, and is ignored.",
    "verification_unreadable": "A verification on `receiver_config` cannot be read, and is ignored.",
    "receiver_hot": "One receiver gets at least half of the POSTs of the shared lane. Give it a lane of its own.",
    "receiver_moved": (
        "A hot receiver gets a lane of its own, until it has been calm for a while. `move_ended` follows when its"
        " messages in the shared lane are finished."
    ),
    "receiver_returned": "A receiver that was hot returns to the shared lane: `why` says for which reason.",
    "hot_receiver_waits": (
        "A hot receiver stays in the shared lane for now: a message of it fails again and again, and its own lane could"
        " not begin before that message has ended."
    ),
    "receiver_calm": "A hot receiver of the shared lane gets less than a quarter of its POSTs again.",
    "erasure_unreadable": "An erasure on `receiver_config` cannot be read, so this process does not apply it.",
    "event_type_unreadable": "An event type on `receiver_config` cannot be read, and is ignored.",
    "key_unreadable": "An API key on `receiver_config` cannot be read, so this process rejects it.",
    "replay_record_unreadable": "A replay job on `receiver_config` cannot be read, and is ignored.",
    # the API
    "api_full": "The API has reached its connection limit: it closed an idle connection, or rejected a new one.",
    "request_refused": "The API rejected a request for its host, origin, key or signature (`cause`).",
    "request_failed": "A request to the API failed by a bug in the relay. Please report it.",
    "check_failed": "A check of the doctor crashed. The other checks are reported; please report this bug.",
    "tail_away": "The live tail cannot read the log, for `why`. It retries, and its clients get the event `away`.",
    "tail_broken": "The live tail failed by a bug in the relay, and its clients are disconnected. Please report it.",
    "audit": "A change over the API, made or rejected. The same record is on the topic `audit`.",
    "audit_line_late": "An audit record was not yet on its topic when its request was answered. It is written later.",
    "audit_line_not_on_the_log": "An audit record could not be written to its topic. It is only in this log; keep it.",
    "audit_lines_not_on_the_log": (
        "Several audit records could not be written to their topic. They are only in this log; keep it."
    ),
    # replays
    "replay_begun": "A replay or discard job starts, or continues, in this process.",
    "replay_ended": "A replay or discard job has ended; `state` is its result.",
    "replay_failed": "A replay or discard job failed by a bug in the relay, and is retried. Please report it.",
    "replay_waits": "A replay or discard job cannot continue yet, and will be retried.",
    "replays_wait": "No replay or discard job can continue yet; all will be retried.",
    # records of messages
    "attempts_untold": (
        "Attempts were not recorded on `delivery_attempts`, for `why`, so the history lacks them. Deliveries are not"
        " affected."
    ),
    "own_events_dropped": "Events of the relay itself were dropped before they were sent, for `problem`.",
    "own_event_not_told": "An event of the relay itself could not be written to the log, and was dropped.",
    "traces_off": "Traces are configured but cannot be sent, for `problem`. Deliveries continue without them.",
    "span_not_written": "A bug in tracing lost a span. Deliveries are not affected.",
    "history_gap": (
        "The log deleted records before the history read them, so the history lacks these messages. Find out why"
        " the history was behind, or raise the retention."
    ),
    "history_ahead": (
        "The history knows offsets that the log does not have: topics were recreated. `relay history rebuild` fills it"
        " again."
    ),
    "history_begun_anew": "The history was cleared, or restored from an older copy. It is filled again from the log.",
    "history_not_erased": "The history did not answer an erasure. It deletes the payloads within two hours.",
    "history_pruned": "The history deleted entries older than `RELAY_HISTORY_RETENTION`.",
    # processes
    "disk_full": (
        "The disk of the data directory is full, and the embedded server has stopped. Free space: it then starts again"
        " without help."
    ),
    "disk_has_room": "The disk of the data directory has free space again, and the embedded server is started.",
    "started": "This process is ready and starts to work.",
    "stopped": "This process stopped cleanly.",
    "processes_start": "`relay run` starts its processes.",
    "processes_stopped": "All processes of `relay run` have ended.",
    "process_ended": "A process of `relay run` ended unexpectedly, and is restarted.",
    "process_dismissed": "`relay run` stops one of its processes, because the others can do the work.",
    "process_not_started": "A process of `relay run` could not be started, for `error`. It is retried.",
    "service_died": "A bug in the relay ended a part of this process, so the process ends, too. Please report it.",
    "event_loop_late": (
        "This process was blocked for `lag_s` seconds: the machine was suspended or overloaded, or a library"
        " blocked it."
    ),
    "event_loop_blocked": "This process is blocked; `stack` shows where.",
    "event_loop_stuck": "This process has been blocked for too long, and exits in order to be restarted.",
}
"""Meanings by event name."""
