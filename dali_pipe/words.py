"""Words that follow a number."""


def counted(count: int, one: str, many: str) -> str:
    """The number with the words that agree with it: `1 record is`, `2,000 records are`."""
    return f"{count:,} {one if count == 1 else many}"
