"""A fresh bucket on one of the servers, by name."""

from __future__ import annotations

from tests.support.azurite import azure_properties, fresh_container
from tests.support.gcs_server import fresh_gcs_bucket, gcs_properties
from tests.support.s3_server import fresh_bucket, s3_properties

CLOUDS = ("s3", "gcs", "azure")


def bucket_of(cloud: str) -> tuple[dict[str, str], str]:
    """Catalog properties, and the bucket's location; skips where there is no server."""
    if cloud == "s3":
        return s3_properties(), f"s3://{fresh_bucket()}"
    if cloud == "gcs":
        return gcs_properties(), f"gs://{fresh_gcs_bucket()}"
    return azure_properties(), f"abfss://{fresh_container()}"
