"""How samples are cut into chunks that any worker may draw; imports no torch."""


def chunk_count(rows: int, chunk_rows: int) -> int:
    """Return the number of chunks that hold ``rows``.

    Example:
        >>> chunk_count(rows=2049, chunk_rows=1024)
        3
    """
    return -(-rows // chunk_rows)
