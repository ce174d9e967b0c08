"""GPU load."""

from __future__ import annotations

from ext_proc.telemetry.dialects import Vocabulary, read_all


def dcgm(gpu, used, free, busy, xid=0):
    labels = f'gpu="{gpu}",UUID="GPU-{gpu}",Hostname="h"'
    return (
        f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {busy}\nDCGM_FI_DEV_FB_USED{{{labels}}} {used}\n"
        f"DCGM_FI_DEV_FB_FREE{{{labels}}} {free}\nDCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}\n"
    )


def read(page, *gpus):
    (reading,) = read_all(page, 1.0, Vocabulary(gpus=frozenset(gpus))).readings
    return reading


def test_tritons_own():
    """Utilization is a mean, memory a share of the sum; the reading describes the endpoint."""
    page = "".join(
        f'nv_gpu_utilization{{gpu_uuid="{gpu}"}} {busy}\n'
        f'nv_gpu_memory_total_bytes{{gpu_uuid="{gpu}"}} 100\n'
        f'nv_gpu_memory_used_bytes{{gpu_uuid="{gpu}"}} {used}\n'
        for gpu, busy, used in (("a", 0.2, 10), ("b", 0.6, 50))
    )
    reading = read(page)
    assert (reading.model, reading.gpu_used, reading.gpu_memory_used) == (None, 0.4, 0.3)
    assert reading.gpu_xid is None


def test_an_endpoint_has_some_of_the_hosts_gpus():
    """Only the endpoint's GPUs count, by index or UUID; another GPU's error is not its error."""
    page = dcgm(0, 10, 90, 20) + dcgm(1, 30, 70, 40) + dcgm(2, 100, 0, 100, xid=79)
    reading = read(page, "0", "GPU-1")
    assert (reading.gpu_used, reading.gpu_memory_used, reading.gpu_xid) == (
        0.30000000000000004,
        0.2,
        0,
    )
    assert read(page, "2").gpu_xid == 79
    assert read_all(page, 1.0, Vocabulary(gpus=frozenset("9"))).readings == ()


def test_engine_activity_is_preferred():
    """GPU_UTIL only means that some kernel ran."""
    page = dcgm(0, 1, 1, 100) + 'DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0"} 0.25\n'
    assert read(page).gpu_used == 0.25


def test_what_is_missing_is_unknown():
    """Without free memory the share is unknown."""
    assert (
        read('DCGM_FI_DEV_FB_USED{gpu="0"} 5\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 1\n').gpu_memory_used
        is None
    )


def test_free_memory_is_that_of_the_emptiest_gpu():
    """A model is loaded onto one GPU; Triton reports bytes, the exporter MiB."""
    page = "".join(
        f'nv_gpu_memory_total_bytes{{gpu_uuid="{gpu}"}} 100\n'
        f'nv_gpu_memory_used_bytes{{gpu_uuid="{gpu}"}} {used}\n'
        for gpu, used in (("a", 10), ("b", 50))
    )
    assert read(page).gpu_memory_free == 90
    assert read(dcgm(0, 10, 90, 20) + dcgm(1, 30, 70, 40)).gpu_memory_free == 90 * 2**20
    assert read('DCGM_FI_DEV_GPU_UTIL{gpu="0"} 1\n').gpu_memory_free is None
