"""The REST catalog: the server writes the metadata, requirements bind a commit to its base.

Outcomes of a commit:

| answer                              | outcome                                              |
|-------------------------------------|------------------------------------------------------|
| 2xx with the table                  | committed                                            |
| 409                                 | conflict; committed if the table shows our snapshot: |
|                                     | a transport may repeat a request (R69). Not proven   |
|                                     | while the table is as it was: what shows it may lag  |
| other 4xx, and the table has moved  | committed if it shows our snapshot, else a conflict: |
| on                                  | a stale sequence number, or a change without a       |
|                                     | snapshot, which only the one who asked can look for  |
| other 4xx                           | a typed error, nothing done                          |
| connection refused                  | `StoreUnavailableError`, nothing was sent            |
| 5xx (503 too, R58), time-out, no    | committed if the table shows our snapshot, else      |
| JSON in a 2xx                       | unknown                                              |

A server that keeps no refs but `main` takes a snapshot for any other as the head of `main`. Where
its configuration says so nothing is sent; where the version that our commit made lacks a ref that
it set, that is told. A later version proves nothing: others drop branches.

A table is never shown older than this process has seen it (`catalog.seen_versions`).

Several tables go to `transactions/commit`, which answers 204 without them, so they are loaded. What
one of them shows holds for all.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest, Endpoints
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from tableformat.catalog.base import Identifier, Locations, TableCommit, TableState
from tableformat.catalog.new_table import FORMAT_VERSION, new_metadata
from tableformat.catalog.rest_client import (
    CANNOT,
    TRANSACTIONS,
    NoAnswerError,
    RefusedError,
    RestClient,
    reading,
    redact,
    refused,
    unavailable,
)
from tableformat.catalog.rest_credentials import (
    TableCredentials,
    offers_signing,
    vended_credentials,
)
from tableformat.catalog.rest_requirements import requirements_for
from tableformat.catalog.seen_versions import SeenVersions
from tableformat.catalog.table_locations import TablePlaces
from tableformat.catalog.table_names import check_new_names, check_table_name, namespace_not_empty
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    StoreUnavailableError,
    TableError,
    UnsupportedError,
    error_context,
)
from tableformat.runtime import Runtime
from tableformat.spec.json_texts import model_json
from tableformat.spec.metadata_json import metadata_from_json
from tableformat.spec.metadata_update import apply_updates
from tableformat.spec.names import MAIN_BRANCH
from tableformat.store.vended import CredentialVault

logger = logging.getLogger("icefold.catalog")
_IN_PLACE = "have writers commit to main, and resolve in place: --staging main --target main"


class RestCatalog:
    """`Catalog` behind a REST server. Connects at first use.

    Args:
        name: For people.
        properties: PyIceberg's REST properties (`uri`, `warehouse`, `token`, `credential`, ...).
        runtime: Clock, ids and fail points.
        places: Where tables may be; grows by the tables that the server names.
        vault: Takes the credentials that the server hands out with a table.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, Any],
        *,
        runtime: Runtime,
        places: TablePlaces,
        vault: CredentialVault,
    ) -> None:
        self.name = name
        self._vault = vault
        self.properties: Mapping[str, Any] = dict(properties)
        self._runtime = runtime
        self._places = places
        self._seen = SeenVersions()
        self._connected: RestClient | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RestCatalog({self.name!r})"

    def create_namespace(self, namespace: Identifier) -> None:
        """See `Catalog.create_namespace`."""
        check_new_names(namespace)
        client = self._client()
        for depth in range(1, len(namespace) + 1):
            with reading(self.name, client.redact):
                try:
                    if not client.namespace_exists(namespace[:depth]):
                        client.create_namespace(namespace[:depth])
                except NamespaceAlreadyExistsError:
                    continue  # another client was faster

    def drop_namespace(self, namespace: Identifier) -> None:
        """See `Catalog.drop_namespace`."""
        client = self._client()
        try:
            with reading(self.name, client.redact):
                client.send("DELETE", Endpoints.drop_namespace, client.namespace_path(namespace))
        except AlreadyExistsError:  # what a conflict is, elsewhere
            raise namespace_not_empty(namespace) from None

    def list_namespaces(self) -> list[Identifier]:
        """See `Catalog.list_namespaces`."""
        client = self._client()
        found: list[Identifier] = []
        pending: list[Identifier] = [()]
        with reading(self.name, client.redact):
            while pending:
                below = [tuple(one) for one in client.list_namespaces(pending.pop())]
                new = [one for one in below if one not in found]
                found.extend(new)
                pending.extend(new)
        return sorted(found)

    def list_tables(self, namespace: Identifier | None = None) -> list[Identifier]:
        """See `Catalog.list_tables`."""
        client = self._client()
        namespaces = self.list_namespaces() if namespace is None else [tuple(namespace)]
        found: list[Identifier] = []
        with reading(self.name, client.redact):
            for space in namespaces:
                with suppress(NoSuchNamespaceError):  # also one that was dropped meanwhile
                    found += [tuple(one) for one in client.list_tables(space)]
        return sorted(found)

    def create_table(
        self,
        identifier: Identifier,
        *,
        schema: Schema,
        partition_spec: PartitionSpec,
        sort_order: SortOrder,
        location: str | None,
        properties: Mapping[str, str],
    ) -> TableState:
        """See `Catalog.create_table`. The server chooses the place when `location` is None.

        Raises:
            CommitUnknownError: The answer was lost: the table may have been created.
        """
        check_table_name(identifier)
        check_new_names(identifier)
        if location is not None:
            self._places.check(location)
        # The same checks as in every catalog; the server assigns ids by the same rule.
        planned = new_metadata(
            schema,
            partition_spec,
            sort_order,
            location=location or "memory://server-decides",
            properties=properties,
            table_uuid=self._runtime.ids.uuid(),
            now_ms=self._runtime.clock.now_ms(),
        )
        self._places.check_properties(planned.properties)
        request = CreateTableRequest(
            name=identifier[-1],
            location=location,
            table_schema=planned.schema(),
            partition_spec=planned.spec(),
            write_order=planned.sort_order(),
            properties={**planned.properties, FORMAT_VERSION: str(planned.format_version)},
        )
        client = self._client()
        path = client.namespace_path(identifier[:-1])
        body = json.loads(model_json(request))
        with error_context(table=".".join(identifier)):
            try:
                state = self._state(
                    identifier, client.send("POST", Endpoints.create_table, path, body)
                )
            except RefusedError as error:
                if error.status == 409:
                    raise AlreadyExistsError("table exists already") from None
                raise refused(error, self.name) from None
            except NoAnswerError as error:
                if not error.sent:
                    raise unavailable(self.name, str(error)) from None
                raise CommitUnknownError(
                    f"table may or may not have been created: {error}",
                    action="look whether it is there",
                ) from error
        if state.metadata.format_version != planned.format_version:
            logger.warning(
                "%s: REST catalog made a v%d table, v%d was asked for",
                state.name,
                state.metadata.format_version,
                planned.format_version,
            )
        return state

    def load_table(self, identifier: Identifier) -> TableState:
        """See `Catalog.load_table`."""
        check_table_name(identifier)
        client = self._client()

        def load() -> TableState:
            reply = client.send("GET", Endpoints.load_table, client.table_path(identifier))
            return self._state(identifier, reply)

        with error_context(table=".".join(identifier)), reading(self.name, client.redact):
            return self._seen.newest(load, self._runtime.clock)

    def metadata_locations(self, identifiers: Collection[Identifier]) -> Locations | None:
        """See `Catalog.metadata_locations`: the protocol has no cheaper call than a load."""
        del identifiers
        return None

    def drop_table(self, identifier: Identifier) -> None:
        """See `Catalog.drop_table`."""
        check_table_name(identifier)
        client = self._client()
        with error_context(table=".".join(identifier)), reading(self.name, client.redact):
            client.drop_table(identifier, purge_requested=False)
        self._seen.forget(identifier)

    def rename_table(self, identifier: Identifier, new: Identifier) -> None:
        """See `Catalog.rename_table`. Where an answer is lost it may have been renamed."""
        check_table_name(identifier)
        check_table_name(new)
        check_new_names(new)
        if new == identifier:
            raise AlreadyExistsError("table exists already", table=".".join(new))
        body = {
            "source": {"namespace": identifier[:-1], "name": identifier[-1]},
            "destination": {"namespace": new[:-1], "name": new[-1]},
        }
        client = self._client()
        with error_context(table=".".join(identifier)), reading(self.name, client.redact):
            client.send("POST", Endpoints.rename_table, {}, body)

    @property
    def commits_groups(self) -> bool:
        """See `Catalog.commits_groups`: if the server says that it has the endpoint."""
        return self._client().has_transactions

    def commit(self, base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        """See `Catalog.commit`: a group of one."""
        [state] = self.commit_group([TableCommit(base, updates)])
        return state

    def commit_group(self, commits: Sequence[TableCommit]) -> list[TableState]:
        """See `Catalog.commit_group`; the outcomes are in the module's text.

        Fail points: `catalog.before_swap`, `catalog.after_swap`.
        """
        states = {each.base.identifier: each.base for each in commits}
        changed = [each for each in commits if self._changes(each)]
        changed.sort(key=lambda each: each.base.identifier)
        if len(changed) > 1 and not self.commits_groups:
            raise UnsupportedError(
                "REST catalog cannot change several tables in one step",
                action="publish them one by one",
                catalog=self.name,
            )
        if changed:
            with error_context(table=", ".join(each.base.name for each in changed)):
                self._check_branches(changed)
                landed, is_answer = self._commit(changed)
                for each, state in zip(changed, landed, strict=True):
                    if is_answer or _follows(state, each.base):
                        _check_refs(each, state)
                states |= {state.identifier: state for state in landed}
        return [states[each.base.identifier] for each in commits]

    def _check_branches(self, commits: Sequence[TableCommit]) -> None:
        """Refuse what a server that keeps no refs would do to `main`."""
        words = self._client().main_only
        names = [one.ref_name for each in commits for one in _set_refs(each.updates)]
        others = [name for name in names if name != MAIN_BRANCH]
        if words is not None and others:
            raise UnsupportedError(
                f"REST catalog keeps no branch or tag of a table but main ({words})",
                branch=others[0],
                action=_IN_PLACE,
                catalog=self.name,
            )

    def _changes(self, commit: TableCommit) -> bool:
        """Whether a commit changes anything; checks what it would make."""
        base = commit.base
        planned = apply_updates(
            base.metadata,
            commit.updates,
            base_location=base.metadata_location,
            now_ms=self._runtime.clock.now_ms(),
        )
        if planned is base.metadata:
            return False
        with error_context(table=base.name):
            if planned.location != base.metadata.location:
                self._places.check(planned.location)
            self._places.check_properties(planned.properties)
        return True

    def _commit(self, commits: Sequence[TableCommit]) -> tuple[list[TableState], bool]:
        """The tables, and whether that is the server's answer: else others may have been there."""
        bodies = [_request(each) for each in commits]
        client = self._client()
        self._runtime.fail_point("catalog.before_swap")
        try:
            if len(commits) == 1:
                path = client.table_path(commits[0].base.identifier)
                reply = client.send("POST", Endpoints.update_table, path, bodies[0])
                self._runtime.fail_point("catalog.after_swap")
                state = self._state(commits[0].base.identifier, reply, commits[0].updates)
                return [state], True
            client.send("POST", TRANSACTIONS, {}, {"table-changes": bodies})
            self._runtime.fail_point("catalog.after_swap")
            lost: Exception = NoAnswerError("the tables do not show the commit")
        except RefusedError as error:
            return self._settle_refusal(commits, error), False
        except NoAnswerError as error:
            if not error.sent:
                raise unavailable(self.name, str(error)) from None
            if error.kind == CANNOT and not any(_added_snapshots(commits)):
                # No file hangs on the outcome of a change of metadata alone.
                raise UnsupportedError(
                    f"REST catalog cannot do this: {error}", catalog=self.name
                ) from None
            lost = error
        except Exception as error:  # noqa: BLE001 - whatever it was, the request was sent
            lost = error
        return self._settle(commits, lost), False

    def _settle_refusal(
        self, commits: Sequence[TableCommit], error: RefusedError
    ) -> list[TableState]:
        # Each may be the answer to a repeated request, of which the first one landed.
        try:
            current = [self.load_table(each.base.identifier) for each in commits]
        except TableError as unseen:
            if error.status in (400, 409) or isinstance(unseen, StoreUnavailableError):
                raise _unknown(commits, error) from error
            raise refused(error, self.name) from None
        if _has_landed(commits, current):
            return current
        is_current = all(
            state.metadata_location == each.base.metadata_location
            for each, state in zip(commits, current, strict=True)
        )
        if error.status == 400 and is_current:
            raise InvalidInputError(f"REST catalog refused: {error}", catalog=self.name) from None
        if error.status != 409 and is_current:
            raise refused(error, self.name) from None
        conflict = CommitConflictError(
            f"another commit landed first: {error}", action="refresh and try again"
        )
        raise (conflict.as_unproven() if is_current else conflict) from None

    def _settle(self, commits: Sequence[TableCommit], cause: Exception) -> list[TableState]:
        """The tables, if one shows its snapshot of the commit; otherwise the outcome is unknown."""
        try:
            current = [self.load_table(each.base.identifier) for each in commits]
        except TableError:
            raise _unknown(commits, cause) from cause
        if _has_landed(commits, current):
            return current
        raise _unknown(commits, cause) from cause

    def _state(
        self,
        identifier: Identifier,
        reply: Mapping[str, Any],
        updates: Sequence[TableUpdate] = (),
    ) -> TableState:
        raw, location = reply.get("metadata"), reply.get("metadata-location")
        if not isinstance(raw, dict) or not isinstance(location, str):
            raise NoAnswerError("the answer has no table metadata")
        metadata = metadata_from_json(raw, location=location)
        self._places.admit(metadata.location)
        renew = TableCredentials(self.name, self.properties, identifier, metadata.location)
        vended = vended_credentials(reply, metadata.location)
        self._vault.grant(vended, renew)
        if not vended and offers_signing(reply):
            self._vault.offer_signing(metadata.location)
        state = TableState(identifier, metadata, location)
        if not _shows(state, updates):
            raise NoAnswerError("the answer does not show the commit")
        if updates:
            self._seen.note(state, self._runtime.clock)
        return state

    def _client(self) -> RestClient:
        with self._lock:
            if self._connected is None:
                with reading(self.name, partial(redact, properties=self.properties)):
                    self._connected = RestClient(self.name, self.properties)
            return self._connected


def _request(commit: TableCommit) -> dict[str, object]:
    """The REST spec's CommitTableRequest."""
    identifier = commit.base.identifier
    requirements = requirements_for(commit.base.metadata, commit.updates)
    return {
        "identifier": {"namespace": identifier[:-1], "name": identifier[-1]},
        "requirements": [json.loads(model_json(one)) for one in requirements],
        "updates": [json.loads(model_json(one)) for one in commit.updates],
    }


def _has_landed(commits: Sequence[TableCommit], current: Sequence[TableState]) -> bool:
    """Whether a table shows the snapshots that the commit adds to it: then all were changed."""
    return any(
        any(isinstance(one, AddSnapshotUpdate) for one in each.updates)
        and _shows(state, each.updates)
        for each, state in zip(commits, current, strict=True)
    )


def _shows(state: TableState, updates: Sequence[TableUpdate]) -> bool:
    """Whether every snapshot that `updates` add is in the table."""
    return all(
        state.metadata.snapshot_by_id(one.snapshot.snapshot_id) is not None
        for one in updates
        if isinstance(one, AddSnapshotUpdate)
    )


def _added_snapshots(commits: Sequence[TableCommit]) -> Iterator[AddSnapshotUpdate]:
    for each in commits:
        yield from (one for one in each.updates if isinstance(one, AddSnapshotUpdate))


def _set_refs(updates: Sequence[TableUpdate]) -> list[SetSnapshotRefUpdate]:
    return [one for one in updates if isinstance(one, SetSnapshotRefUpdate)]


def _follows(state: TableState, base: TableState) -> bool:
    """Whether a version is the next one after `base`: if it shows our commit, it is that alone."""
    log = state.metadata.metadata_log
    return bool(log) and log[-1].metadata_file == base.metadata_location


def _check_refs(commit: TableCommit, state: TableState) -> None:
    """Tell of a ref that the server took and does not show; what it did to `main` is done.

    `state` is the version that the commit made. A server that had the ref before keeps refs.
    """
    for one in _set_refs(commit.updates):
        if one.ref_name not in {*state.metadata.refs, *commit.base.metadata.refs}:
            raise UnsupportedError(
                "REST catalog does not keep branches or tags: it took one and does not show it",
                branch=one.ref_name,
                snapshot_id=one.snapshot_id,
                action=f"look whether the snapshot is on main now; {_IN_PLACE}",
            )


def _unknown(commits: Sequence[TableCommit], cause: Exception) -> CommitUnknownError:
    ids = [one.snapshot.snapshot_id for one in _added_snapshots(commits)]
    return CommitUnknownError(
        f"the commit may or may not have landed: {cause}",
        action="look for the snapshot before trying again; delete nothing",
        snapshot_id=", ".join(map(str, ids)) or None,
    )
