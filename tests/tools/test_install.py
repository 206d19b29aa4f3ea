"""Where pip is told to look is where uv looks."""

from tools.install import LOCK, pip_sources

LISTING = """\
:env:.disable-pip-version-check='1'
:env:.find-links='/wheels'
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
site.index-url='https://user:pa=ss@three.example/simple'
global.timeout='30'
"""


def test_the_sources_of_pip_are_passed_on():
    assert pip_sources(LISTING) == [
        *("--find-links", "/wheels"),
        *("--extra-index-url", "https://one.example/simple", "--extra-index-url", "https://two.example/simple"),
        *("--index-url", "https://user:pa=ss@three.example/simple"),
    ]
    assert pip_sources("") == []


def test_the_lock_pins_the_installer_itself():
    assert sum(line.startswith("uv==") for line in LOCK.read_text().splitlines()) == 1
