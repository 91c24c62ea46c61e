"""Settings of the images feature: gateway, worker, and shared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from sluice.common.settings.base import SettingsPart, checked_signing_key

_DAY_S = 24 * 3600
_MIB = 1 << 20


class SharedImageSettings(SettingsPart):
    """Settings of both gateway and worker."""

    image_spool_dir: str = Field(
        "",
        description="Directory of uploads that await processing, shared by gateways and workers. "
        "Empty: `images/spool` below SLUICE_DATA_DIR.",
    )
    image_store: Literal["dir", "s3"] = Field(
        "dir", description="Where processed images are stored: a directory or an S3 bucket."
    )
    image_store_dir: str = Field(
        "",
        description="Directory of IMAGE_STORE=dir, shared by gateways and workers. Empty: "
        "`images/store` below SLUICE_DATA_DIR.",
    )
    image_s3_endpoint: str = Field("", description="URL of an S3-compatible server. Empty: AWS.")
    image_s3_bucket: str = Field("", description="Name of the S3 bucket; it must exist.")
    image_s3_region: str = Field("us-east-1", description="Region of the S3 bucket.")
    aws_access_key_id: str = Field(
        "", description="S3 access key id; prefer a systemd credential `aws_access_key_id`."
    )
    aws_secret_access_key: SecretStr = Field(
        SecretStr(""),
        description="S3 secret access key; prefer a systemd credential `aws_secret_access_key`.",
    )

    @model_validator(mode="after")
    def _bucket_for_s3(self) -> SharedImageSettings:
        if self.image_store == "s3" and not self.image_s3_bucket:
            raise ValueError("IMAGE_STORE=s3 needs IMAGE_S3_BUCKET, the name of a bucket")
        return self


class ImageGatewaySettings(SharedImageSettings):
    """Settings of the gateway for image uploads and records."""

    image_upload_hard_max: int = Field(
        32 * _MIB,
        ge=1024,
        le=1 << 30,
        description="Largest upload body, in bytes; more get 413.",
    )
    image_upload_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="Seconds an upload may take."
    )
    image_upload_secret: SecretStr = Field(
        SecretStr(""),
        description="Key that signs upload tokens, at least 24 characters; prefer a systemd "
        "credential `image_upload_secret`. If set, an upload needs only the token from the "
        "response that created it. Empty disables tokens.",
    )
    image_upload_token_ttl_s: int = Field(
        900, ge=10, le=3600, description="Seconds until an upload token expires."
    )
    image_consumer: bool = Field(
        True,
        description="Whether this gateway reads `image:result`. Needed only for results of "
        "third-party pipelines; Sluice's workers record theirs directly.",
    )
    image_record_ttl_s: int = Field(
        30 * _DAY_S,
        ge=3600,
        le=365 * _DAY_S,
        description="Seconds an image is kept after its last change.",
    )

    @field_validator("image_upload_secret")
    @classmethod
    def _long_upload_key(cls, value: SecretStr) -> SecretStr:
        return checked_signing_key(value)


class ImageWorkerSettings(SharedImageSettings):
    """Settings of the worker: accepted images, detection, blurring and resource limits."""

    image_max_bytes: int = Field(
        10 * _MIB, ge=1024, le=1 << 30, description="Largest file that is processed, in bytes."
    )
    image_max_pixels: int = Field(
        100_000_000, ge=1, le=1_000_000_000, description="Maximum number of pixels of an image."
    )
    image_formats: str = Field(
        "jpeg,png,webp,gif,avif",
        description="Accepted formats, comma-separated; also `tiff`, and `heic` if pillow-heif is "
        "installed. The gateway answers 415 to uploads of types that no live worker accepts.",
    )
    image_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Seconds the processing of one image may take."
    )
    image_parallel: int = Field(
        0,
        ge=0,
        le=256,
        description="Maximum number of images processed at once by this worker; 0: one per core.",
    )
    image_memory_mb: int = Field(
        1536,
        ge=256,
        le=65_536,
        description="Address space limit of a process that processes images, in megabytes.",
    )
    image_max_width: int = Field(
        1920,
        ge=16,
        le=16_383,
        description="Wider images are scaled down to this width, in pixels.",
    )
    image_quality: int = Field(
        85, ge=1, le=100, description="WebP quality of processed images, 1 to 100."
    )
    image_detector: Literal["auto", "centerface", "yunet", "none"] = Field(
        "auto",
        description="Face detector: the model `centerface` or `yunet`, `none` to detect no faces, "
        "or `auto` for an installed one. The image record shows whether detection ran.",
    )
    image_model_path: str = Field(
        "", description="ONNX file of the face model. Empty: the one of `sluice model install`."
    )
    image_plate_model: str = Field(
        "",
        description="ONNX file of a number-plate model. Empty: number plates are not detected.",
    )
    image_detect_size: int = Field(
        640,
        ge=64,
        le=2048,
        multiple_of=32,
        description="Side of the square input of the detection models, in pixels.",
    )
    image_blur: Literal["pixelate", "gaussian", "none"] = Field(
        "pixelate", description="How faces are obscured; `none` only counts them."
    )
    image_reconcile_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Seconds between two scans for images whose job ended without updating them, "
        "and for unused files.",
    )
