"""The subcommands of `relay`, by name, and the exit code of one that was interrupted."""

from typing import Final

COMMANDS: Final = {
    "attempts": ("relay.cli.attempts", "List each HTTP exchange about a message, or with a receiver."),
    "audit": ("relay.cli.audit", "Show who changed what over the API."),
    "bench": ("relay.cli.bench", "Measure throughput, latency and CPU per message. Needs a checkout."),
    "config": ("relay.cli.config", "Look at the settings."),
    "demo": ("relay.cli.demo", "Send real payloads to three kinds of receiver, and tell what happens as it does."),
    "dev": ("relay.cli.dev", "Run everything in one process, embedded, with a demo receiver."),
    "doctor": ("relay.cli.doctor", "Look at all that the relay depends on, and say what to do."),
    "export": ("relay.cli.export", "Write down all that a stopped relay has to hand over."),
    "failed": ("relay.cli.failed", "List dead letters, look at one, replay or discard them."),
    "help": ("relay.cli.help", "Show a page of the documentation, or list them all."),
    "history": ("relay.cli.history", "See how far the history is, or build it anew."),
    "import": ("relay.cli.import_", "Take in what another relay has exported."),
    "keys": ("relay.cli.keys", "Make, list, rotate and revoke keys of the API."),
    "messages": ("relay.cli.messages", "List messages that came, and how far each delivery is."),
    "portal": ("relay.cli.portal", "Make links into the portal of an owner."),
    "listen": ("relay.cli.listen", "Bring messages to a port of this machine, and show request and answer."),
    "receivers": ("relay.cli.receivers", "Check, list and apply receivers."),
    "recover": ("relay.cli.recover", "Put back into the state what it lost, from the log."),
    "replay": ("relay.cli.replay", "Send again what failed, or was delivered; follow and stop such jobs."),
    "rights": ("relay.cli.rights", "Print the commands that give each role its rights on Kafka and Redis."),
    "run": ("relay.cli.run", "Run workers and API on Kafka and Redis."),
    "secrets": ("relay.cli.secrets", "Encrypt with the newest key what an older one has encrypted."),
    "send": ("relay.cli.send", "Send one message from a file."),
    "sink": ("relay.cli.sink", "Run a test receiver, like a CI with fault knobs."),
    "sources": ("relay.cli.sources", "Declare sources over the API, list, change and remove them."),
    "status": ("relay.cli.status", "Show where a message is, and its answers."),
    "tail": ("relay.cli.tail", "Show what happens, line by line, until it is stopped."),
    "top": ("relay.cli.top", "Show rates, lag and failures of each stage and receiver, as they change."),
    "topics": ("relay.cli.topics", "Create the topics, or describe them."),
    "trigger": ("relay.cli.trigger", "Send sample events."),
    "version": ("relay.cli.version", "Print the version."),
    "worker": ("relay.cli.worker", "Run one worker on Kafka and Redis."),
}
"""Command -> its module, which has a click command of the same name (`import_`), and its line in --help."""

INTERRUPTED: Final = 130
