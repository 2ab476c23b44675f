"""The subcommands of `relay`, by name, and the exit code of one that was interrupted."""

from typing import Final

COMMANDS: Final = {
    "attempts": ("relay.cli.messages", "List each HTTP exchange about a message, or with a receiver."),
    "audit": ("relay.cli.access", "Show who changed what over the API."),
    "bench": ("relay.cli.bench", "Measure throughput, latency and CPU per message. Needs a checkout."),
    "config": ("relay.cli.config", "Show and check the settings."),
    "demo": ("relay.cli.demo", "Send real payloads to three kinds of receiver, and print events as they happen."),
    "dev": ("relay.cli.dev", "Run everything in one process, embedded, with a demo receiver."),
    "doctor": ("relay.cli.doctor", "Check the relay and its dependencies, and say what to do."),
    "erase": ("relay.cli.access", "Erase the payloads of a source, a message or a receiver."),
    "events": ("relay.cli.event_types", "Apply, list and show the catalogue of event types."),
    "export": ("relay.cli.transfer", "Export the data of a stopped relay."),
    "failed": ("relay.cli.failed", "List, show, replay or discard dead letters."),
    "help": ("relay.cli.help", "Show a page of the documentation, or list them all."),
    "history": ("relay.cli.history", "Show the history's lag, or rebuild it."),
    "incidents": ("relay.cli.incidents", "List causes of failures, and fix one: fix, test, replay."),
    "import": ("relay.cli.transfer", "Import the data of another relay."),
    "keys": ("relay.cli.access", "Create, list, rotate and revoke keys of the API."),
    "messages": ("relay.cli.messages", "List messages, and the status of each delivery."),
    "portal": ("relay.cli.access", "Create links to the portal of an owner, and print its texts."),
    "listen": ("relay.cli.listen", "Forward messages to a port of this machine, and show requests and responses."),
    "presets": ("relay.cli.config", "List and show presets: entries for well-known systems."),
    "receivers": ("relay.cli.receivers", "Check, list and apply receivers."),
    "recover": ("relay.cli.recover", "Restore lost state from the log."),
    "replay": ("relay.cli.replay", "Replay failed or delivered messages; follow and stop such jobs."),
    "rights": ("relay.cli.rights", "Print the commands that give each role its rights on Kafka and Redis."),
    "run": ("relay.cli.run", "Run workers and API on Kafka and Redis."),
    "secrets": ("relay.cli.access", "Re-encrypt secrets with the newest key."),
    "send": ("relay.cli.send", "Send one message from a file."),
    "sink": ("relay.cli.sink", "Run a test receiver, like a CI with fault knobs."),
    "sources": ("relay.cli.sources", "Declare sources over the API, list, change and remove them."),
    "status": ("relay.cli.status", "Show the status of a message, and its answers."),
    "tail": ("relay.cli.events", "Show events as they happen, until Ctrl-C."),
    "top": ("relay.cli.top", "Show rates, lag and failures of each stage and receiver, as they change."),
    "topics": ("relay.cli.topics", "Create the topics, or describe them."),
    "trigger": ("relay.cli.trigger", "Send sample events."),
    "version": ("relay.cli.group", "Print the version."),
    "worker": ("relay.cli.run", "Run one worker on Kafka and Redis."),
}
"""Command -> its module, which has a click command of the same name (`import_`), and its line in --help."""

INTERRUPTED: Final = 130
