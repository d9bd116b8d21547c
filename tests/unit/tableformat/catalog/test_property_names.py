"""A catalog property that is nearly one that is read would do nothing: it is refused."""

import pytest

from tableformat import open_catalog
from tableformat.catalog.property_names import check_property_names
from tableformat.errors import InvalidInputError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("wharehouse", "warehouse"),
        ("Warehouse", "warehouse"),
        ("allowed-location", "allowed-locations"),
        ("s3.endpont", "s3.endpoint"),
        ("s3.endpoint-url", "s3.endpoint"),
        ("S3.endpoint", "s3.endpoint"),
        ("s3_endpoint", "s3.endpoint"),
        ("s3.acces-key-id", "s3.access-key-id"),
        ("credentials", "credential"),
        ("adls.accountname", "adls.account-name"),
    ],
)
def test_a_name_that_is_nearly_one_is_refused(name, meant):
    with pytest.raises(InvalidInputError, match="no such catalog property") as caught:
        check_property_names({name: "hunter2"}, "shop")
    assert caught.value.context["property"] == name
    assert caught.value.action == f"did you mean {meant}?"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "type", "uri", "warehouse", "allowed-locations", "key.shop.orders", "header.X-Team",
        "s3.sse.md5", "s3.dualstack-enabled", "s3.cross-region-access-enabled", "io-impl",
        "s3.delete.batch-size", "client.credentials-provider", "glue.region", "glue.access-key-id",
        "dynamodb.endpoint", "jdbc.user", "gcs.no-auth", "gcs.service.host", "hive.uri",
        "adls.sas-token.account", "adls.read.block-size-bytes", "echo", "pool_pre_ping",
        "oauth2-server-uri", "rest.sigv4-enabled", "view-endpoints-supported", "default-namespace",
    ],
)  # fmt: skip
def test_known_names_and_those_of_other_tools_are_taken(name):
    check_property_names({name: "x"}, "shop")


def test_nothing_is_made_before_it_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="did you mean allowed-locations"):
        open_catalog("local", warehouse=str(tmp_path / "w"), **{"allowed-location": "/x"})
    assert not (tmp_path / "w").exists()
