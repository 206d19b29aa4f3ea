import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """FAISS's threads wait for each other by spinning, which takes seconds on a machine with other work."""
    import faiss

    faiss.omp_set_num_threads(1)
