"""Connections to S3, from PyIceberg's `s3.*` properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow.fs import S3FileSystem

from tableformat.errors import UnsupportedError

_UNSUPPORTED = ("s3.role-arn", "s3.signer", "s3.proxy-uri")


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse a property whose effect would be missing silently (`UnsupportedError`)."""
    for key in _UNSUPPORTED:
        if key in properties:
            raise UnsupportedError("S3 property is not supported", key=key)


def create_client(properties: Mapping[str, str]) -> Any:
    """A boto3 client that does not retry by itself: a repeated conditional put must be seen."""
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "S3 needs boto3", action="pip install 'icefold[s3]'", module=error.name
        ) from error
    endpoint = properties.get("s3.endpoint")
    style = "virtual" if _flag(properties, "s3.force-virtual-addressing") else "path"
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=float(properties.get("s3.connect-timeout", "5")),
        read_timeout=float(properties.get("s3.request-timeout", "60")),
        s3={"addressing_style": style if endpoint else "auto"},
        # Servers that are not AWS know neither newer checksum; TLS and our own checks remain.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **_anonymous(properties),
    )
    session = boto3.session.Session(profile_name=properties.get("s3.profile-name"))
    return session.client(
        "s3",
        endpoint_url=endpoint,
        region_name=_first(properties, "region") or ("us-east-1" if endpoint else None),
        aws_access_key_id=_first(properties, "access-key-id"),
        aws_secret_access_key=_first(properties, "secret-access-key"),
        aws_session_token=_first(properties, "session-token"),
        config=config,
    )


def create_arrow_file_system(properties: Mapping[str, str]) -> S3FileSystem:
    """Arrow's own client, for random access to Parquet files."""
    endpoint = properties.get("s3.endpoint")
    return S3FileSystem(
        access_key=_first(properties, "access-key-id"),
        secret_key=_first(properties, "secret-access-key"),
        session_token=_first(properties, "session-token"),
        anonymous=_flag(properties, "s3.anonymous"),
        region=_first(properties, "region") or ("us-east-1" if endpoint else None),
        endpoint_override=endpoint,
        connect_timeout=float(properties.get("s3.connect-timeout", "5")),
        request_timeout=float(properties.get("s3.request-timeout", "60")),
        force_virtual_addressing=_flag(properties, "s3.force-virtual-addressing"),
    )


def _anonymous(properties: Mapping[str, str]) -> dict[str, Any]:
    from botocore import UNSIGNED

    return {"signature_version": UNSIGNED} if _flag(properties, "s3.anonymous") else {}


def _first(properties: Mapping[str, str], name: str) -> str | None:
    return properties.get(f"s3.{name}") or properties.get(f"client.{name}")


def _flag(properties: Mapping[str, str], key: str) -> bool:
    return properties.get(key, "false").lower() == "true"
