import pytest

from rlcore.files import write_atomic


def test_a_file_is_there_whole_and_what_was_there_stays_until_then(tmp_path):
    path = tmp_path / "b.json"
    write_atomic(path, "é1")
    assert path.read_bytes() == b"\xc3\xa91" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(UnicodeEncodeError):
        write_atomic(str(path), "2\ud800")
    assert path.read_text() == "é1"
