"""The options of `icefold ingest` that name a schema registry."""

from __future__ import annotations

import click

from maintenance.cli.context import parse_properties, with_options
from maintenance.cli.ingest_words import IngestWords
from tableformat.cdc.registry.client import RegistrySettings
from tableformat.cdc.registry.decoder import RegistryDecoder

NAMES = ("schema_registry", "registry_user_info", "registry_options")
USER_INFO = "basic.auth.user.info"
registry_options = with_options(
    click.option(
        "--schema-registry",
        metavar="URL",
        help="With --kafka: messages are Avro or JSON Schema in Confluent's wire format, and their "
        "schemas are there.",
    ),
    click.option(
        "--registry-user-info",
        metavar="USER:PASSWORD",
        envvar="ICEFOLD_REGISTRY_USER_INFO",
        show_envvar=True,
        help="Who we are to the registry. On the command line others may see it.",
    ),
    click.option(
        "--registry-option",
        "registry_options",
        multiple=True,
        metavar="KEY=VALUE",
        callback=parse_properties,
        help="A setting of the registry's client, such as ssl.ca.location=FILE; may be repeated.",
    ),
)


def registry_decoder(words: IngestWords) -> RegistryDecoder | None:
    """The decoder that the options ask for.

    Raises:
        click.UsageError: They miss another option.
        InvalidInputError: The URL holds credentials.
    """
    if words.schema_registry is None:
        if words.registry_options:
            raise click.UsageError("--registry-option needs --schema-registry")
        return None
    if words.kafka is None and not words.replay_dead_letters:
        raise click.UsageError("--schema-registry needs --kafka")
    user = {} if words.registry_user_info is None else {USER_INFO: words.registry_user_info}
    return RegistryDecoder(
        RegistrySettings(words.schema_registry, {**words.registry_options, **user})
    )
