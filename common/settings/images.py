"""Settings of the images: the gateway's part, the worker's part, and what both must know."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from common.settings.derived import SettingsPart

_DAY_S = 24 * 3600
_MIB = 1 << 20


class SharedImageSettings(SettingsPart):
    """What gateway and worker must agree on."""

    image_spool_dir: str = Field(
        "",
        description="Directory where uploads wait for a worker; gateways and workers must share "
        "it. Empty: `images/spool` below SLUICE_DATA_DIR.",
    )
    image_store: Literal["dir", "s3"] = Field(
        "dir", description="Where processed images are kept: a directory, or an S3 bucket."
    )
    image_store_dir: str = Field(
        "",
        description="The directory; gateways and workers must share it. Empty: `images/store` "
        "below SLUICE_DATA_DIR.",
    )
    image_s3_endpoint: str = Field(
        "", description="URL of an S3-compatible server; empty: AWS itself."
    )
    image_s3_bucket: str = Field("", description="The bucket, which must exist.")
    image_s3_region: str = Field("us-east-1", description="Its region.")
    aws_access_key_id: str = Field(
        "", description="Who may write there; better a credential `aws_access_key_id`."
    )
    aws_secret_access_key: SecretStr = Field(
        SecretStr(""), description="And the secret; better a credential `aws_secret_access_key`."
    )

    @model_validator(mode="after")
    def _bucket_for_s3(self) -> SharedImageSettings:
        if self.image_store == "s3" and not self.image_s3_bucket:
            raise ValueError("IMAGE_STORE=s3 needs IMAGE_S3_BUCKET, the name of a bucket")
        return self


class ImageGatewaySettings(SharedImageSettings):
    """What may be uploaded, and how long it is known."""

    image_upload_hard_max: int = Field(
        32 * _MIB,
        ge=1024,
        le=1 << 30,
        description="Longest body of an upload in bytes; more get 413.",
    )
    image_upload_timeout_s: float = Field(
        120.0, gt=0, le=3600, description="Seconds an upload may take."
    )
    image_upload_secret: SecretStr = Field(
        SecretStr(""),
        description="Signs upload tokens; better a credential `image_upload_secret`. Set: an "
        "upload needs the token that its creation answered, and nothing else. Empty: no tokens.",
    )
    image_upload_token_ttl_s: int = Field(
        900, ge=10, le=3600, description="Seconds an upload token is good for."
    )
    image_consumer: bool = Field(
        True,
        description="Whether this gateway reads `image:result`. Results of our own workers are "
        "recorded without it; those of other pipelines are not.",
    )
    image_record_ttl_s: int = Field(
        30 * _DAY_S,
        ge=3600,
        le=365 * _DAY_S,
        description="Seconds an image is kept after its last change.",
    )


class ImageWorkerSettings(SharedImageSettings):
    """What is taken for an image, how it is made private and small, and what that may cost."""

    image_max_bytes: int = Field(
        10 * _MIB, ge=1024, le=1 << 30, description="Longest file that is processed, in bytes."
    )
    image_max_pixels: int = Field(
        100_000_000, ge=1, le=1_000_000_000, description="Most pixels of an image."
    )
    image_formats: str = Field(
        "jpeg,png,webp,gif,avif",
        description="Formats that are taken, separated by commas; also `tiff`, and `heic` where "
        "pillow-heif is installed.",
    )
    image_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="Seconds the processing of one image may take."
    )
    image_parallel: int = Field(
        0, ge=0, le=256, description="Images processed at once by this worker; 0: one a core."
    )
    image_memory_mb: int = Field(
        1536, ge=256, le=65_536, description="Megabytes of address space of a process that does it."
    )
    image_max_width: int = Field(
        1920, ge=16, le=16_383, description="Wider images are made so wide; none is enlarged."
    )
    image_quality: int = Field(85, ge=1, le=100, description="Quality of the WebP.")
    image_detector: Literal["auto", "centerface", "yunet", "none"] = Field(
        "auto",
        description="Who looks for faces: an installed model, or nobody. `auto`: whichever is "
        "there; where none is, records say so.",
    )
    image_model_path: str = Field(
        "", description="ONNX file of the face model. Empty: where `sluice model install` puts it."
    )
    image_plate_model: str = Field(
        "", description="ONNX file of a model that finds number plates. Empty: nobody does."
    )
    image_detect_size: int = Field(
        640, ge=64, le=2048, multiple_of=32, description="Side of the square that models look at."
    )
    image_blur: Literal["pixelate", "gaussian", "none"] = Field(
        "pixelate", description="How faces are made unrecognisable; `none` only counts them."
    )
    image_reconcile_s: float = Field(
        15.0,
        gt=0,
        le=3600,
        description="Seconds between looks for images whose job ended without them, and for files "
        "that nobody needs.",
    )
