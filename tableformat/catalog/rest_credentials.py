"""Credentials in a REST server's answers: read, and asked for again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyiceberg.catalog.rest import Endpoints

from tableformat.catalog.base import Identifier
from tableformat.catalog.rest_client import RestClient, reading, redact
from tableformat.store.vended import SIGNING, VendedCredentials


def vended_credentials(reply: Mapping[str, Any], location: str) -> list[VendedCredentials]:
    """What a server hands out with a table: `storage-credentials` by prefix, else its `config`.

    A server that offers to sign requests instead hands out nothing: the operator's credentials,
    wherever they come from, are used.
    """
    config = reply.get("config")
    config = config if isinstance(config, dict) else {}
    listed = reply.get("storage-credentials")
    given = [
        (str(each["prefix"]), {**config, **each["config"]})
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict) and "prefix" in each and isinstance(each.get("config"), dict)
    ]
    found = [VendedCredentials.of(prefix, of) for prefix, of in given or [(location, config)]]
    return [each for each in found if each is not None]


def offers_signing(reply: Mapping[str, Any]) -> bool:
    """Whether a server would sign requests to the table's files itself (remote signing)."""
    config = reply.get("config")
    given = config if isinstance(config, dict) else {}
    return any(
        key.startswith(SIGNING) and str(value).lower() != "false" for key, value in given.items()
    )


@dataclass(frozen=True, slots=True, repr=False)
class TableCredentials:
    """Asks the server for a table's credentials again, from any process. Picklable.

    Attributes:
        catalog: Its name.
        properties: The operator's; may hold secrets.
        identifier: The table.
        location: Its location.
    """

    catalog: str
    properties: Mapping[str, Any]
    identifier: Identifier
    location: str

    def __call__(self) -> list[VendedCredentials]:
        """The credentials as they are now.

        Raises:
            TableError: The server does not answer, or the table is gone.
        """
        with reading(self.catalog, partial(redact, properties=self.properties)):
            client = RestClient(self.catalog, self.properties)
            path = client.table_path(self.identifier)
            reply = client.send("GET", Endpoints.load_table, path)
        return vended_credentials(reply, self.location)
