"""Creates the storage that the settings select. boto3 is imported only for S3."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from sluice.common.errors import SettingsError
from sluice.common.features.images.storage.base import Storage
from sluice.common.features.images.storage.directory import DirectoryStorage
from sluice.common.features.images.storage.spool import Spool, spool_dir, store_dir

if TYPE_CHECKING:
    from sluice.common.features.images.storage.s3 import Bucket
    from sluice.common.settings.gateway import GatewaySettings
    from sluice.common.settings.images import SharedImageSettings
    from sluice.common.settings.worker import WorkerSettings


def create_storage(settings: GatewaySettings | WorkerSettings) -> Storage:
    """The storage; raises SettingsError if it is not available."""
    if settings.image_store == "dir":
        return DirectoryStorage(store_dir(settings, settings.sluice_data_dir))
    if importlib.util.find_spec("boto3") is None:
        raise SettingsError("IMAGE_STORE=s3 needs the package boto3: install sluice[s3]")
    from sluice.common.features.images.storage.s3 import S3Storage

    return S3Storage(_create_bucket(settings))


def create_spool(settings: GatewaySettings | WorkerSettings) -> Spool:
    return Spool(spool_dir(settings, settings.sluice_data_dir))


def _create_bucket(settings: SharedImageSettings) -> Bucket:
    secret = settings.aws_secret_access_key.get_secret_value()
    if bool(settings.aws_access_key_id) != bool(secret):
        raise SettingsError("set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither")
    from sluice.common.features.images.storage.s3 import Bucket

    return Bucket(
        settings.image_s3_bucket,
        settings.image_s3_region,
        settings.image_s3_endpoint,
        settings.aws_access_key_id,
        secret,
    )
