"""`relay erase`: erases payloads on request, and lists erasures."""

import click

from relay.cli.api import PAGE, ApiOptions, api_command
from relay.cli.options import confirm
from relay.cli.table import print_table
from relay.domain.errors import UserError
from relay.schema.erasures import ErasureView, NewErasureView


@click.command()
@click.argument("message_id", required=False)
@click.option("--source", help="Source of MESSAGE_ID; without MESSAGE_ID, all messages of this source.")
@click.option("--receiver", help="All deliveries to this receiver.")
@click.option("--list", "list_", is_flag=True, help="Only list the erasures in force.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@api_command
def erase(
    call: ApiOptions, message_id: str | None, source: str | None, receiver: str | None, list_: bool, yes: bool
) -> None:
    """Erase the payloads of messages that were received so far. Unfinished deliveries end as discarded.

    \b
    relay erase --source github my-first
    relay erase --source github
    relay erase --receiver ci
    """
    if list_:
        found = call.every(lambda client: client.erasures(limit=PAGE))
        columns = ("MADE", "ID", "OF", "BY")
        call.show(
            found, lambda items: print_table(columns, [(i["made_at"] or "-", i["id"], _of(i), i["by"]) for i in items])
        )
        return
    if (source is None) == (receiver is None) or (receiver is not None and message_id is not None):
        raise UserError("give --source, or --source and MESSAGE_ID, or --receiver")
    what = (
        f"message {message_id} of {source}"
        if message_id
        else f"{'source' if source else 'receiver'} {source or receiver}"
    )
    confirm(f"Erase the payloads of {what}? This cannot be undone.", yes=yes)
    made = call.run(lambda client: client.erase(source_id=source, message_id=message_id, receiver=receiver))
    call.show(made, _print)


def _print(made: NewErasureView) -> None:
    found = made["in_history"]
    where = "the history deletes them within two hours" if found is None else f"{found} deleted from the history"
    click.echo(f"{made['id']}: payloads of {_of(made)} are erased; {where}")
    if made["cancels"] is not None:
        click.echo(f"  {made['cancels'].rpartition('/')[2]}: the job that cancels what was not sent yet")
    for each in made["remains"]:
        until = each["until"] or "they are sent or discarded, and the topic is compacted"
        click.echo(f"  records remain on {each['topic']} until {until}")


def _of(erasure: ErasureView | NewErasureView) -> str:
    if erasure["receiver"] is not None:
        return f"receiver {erasure['receiver']}"
    message = "" if erasure["message_id"] is None else f"/{erasure['message_id']}"
    return f"source {erasure['source_id']}{message}"
