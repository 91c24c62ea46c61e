"""Which store the settings ask for."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from common.errors import SettingsError
from common.images.dir_storage import DirStorage
from common.images.directories import spool_dir, store_dir
from common.images.spool import Spool
from common.images.storage import Storage

if TYPE_CHECKING:
    from common.image_settings import SharedImageSettings
    from common.images.s3_storage import Bucket
    from common.settings import GatewaySettings, WorkerSettings


def storage_of(settings: GatewaySettings | WorkerSettings) -> Storage:
    """The store; raises SettingsError for one that cannot be had."""
    if settings.image_store == "dir":
        return DirStorage(store_dir(settings, settings.sluice_data_dir))
    if importlib.util.find_spec("boto3") is None:
        raise SettingsError("IMAGE_STORE=s3 needs the package boto3: install sluice[s3]")
    from common.images.s3_storage import S3Storage

    return S3Storage(_bucket_of(settings))


def spool_of(settings: GatewaySettings | WorkerSettings) -> Spool:
    """The spool."""
    return Spool(spool_dir(settings, settings.sluice_data_dir))


def _bucket_of(settings: SharedImageSettings) -> Bucket:
    secret = settings.aws_secret_access_key.get_secret_value()
    if bool(settings.aws_access_key_id) != bool(secret):
        raise SettingsError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set together or not")
    from common.images.s3_storage import Bucket

    return Bucket(
        settings.image_s3_bucket,
        settings.image_s3_region,
        settings.image_s3_endpoint,
        settings.aws_access_key_id,
        secret,
    )
