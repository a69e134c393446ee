"""A volume of plain objects: S3, Google Cloud Storage, Azure (see `volume`)."""
