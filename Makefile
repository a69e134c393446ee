# `make mount` and `make test` install whatever is missing first; see scripts/.
# MOUNTPOINT=/some/directory mounts somewhere else than on /mnt/agent; PYTHON=python3.13 chooses the interpreter.

.PHONY: mount umount test check bench clean

mount:
	@scripts/mount

umount:
	@scripts/umount

test:
	@scripts/bootstrap --test
	@scripts/test

check:
	@scripts/bootstrap --test
	@scripts/check

# A run takes most of an hour; BENCH=--quick takes minutes, BENCH=--write also puts the numbers into BENCHMARKS.md.
bench:
	@scripts/bootstrap --bench
	@scripts/bench --all $(BENCH)

clean:
	@scripts/clean
