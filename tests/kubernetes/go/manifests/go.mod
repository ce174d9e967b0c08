module tidegate.invalid/tests/manifests

go 1.26.0
