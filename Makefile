# `make mount` and `make test` install whatever is missing first; see scripts/.
# MOUNTPOINT=/some/directory mounts somewhere else than on /mnt/agent; PYTHON=python3.13 chooses the interpreter.

.PHONY: mount umount demo test test-all check docs bench clean

mount:
	@scripts/mount

umount:
	@scripts/umount

# Scripted agents, without an API key, fill a store, conversations and files; `make umount` ends it.
demo:
	@scripts/demo

# Every promise, in 10 to 17 minutes on two cores; `.ci/run` calls it. A run says what it left to the night.
# TEST="-k threads" passes that on to pytest.
test:
	@scripts/bootstrap --test
	@scripts/test $(TEST)

# Everything: also soak, second configurations of backends in full, systemd and images. Hours.
test-all:
	@scripts/bootstrap --test
	@scripts/test --night $(TEST)

check:
	@scripts/bootstrap --test
	@scripts/check

# The documentation as a site, in site/index.html. A link that leads nowhere is an error.
docs:
	@scripts/bootstrap --docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet
	@echo "docs: site/index.html"

# A run takes most of an hour; BENCH=--quick takes minutes, BENCH=--write also puts the numbers into BENCHMARKS.md.
# BENCH=--many-hosts, or another word of scripts/bench, runs that benchmark instead.
bench:
	@scripts/bootstrap --bench
	@scripts/bench --all $(BENCH)

clean:
	@scripts/clean
