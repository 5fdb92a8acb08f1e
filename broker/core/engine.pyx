# cython: language_level=3
"""The engine: opens a data folder, finds logs by name, keeps house, closes in order."""
import asyncio
import gc
import os
import shutil
import threading

from cpython.bytes cimport PyBytes_FromStringAndSize

from broker.core.log cimport SYNC_NONE, Log
from broker.core.router cimport Router
from broker.core.shared cimport Shared
from broker.core.syncing cimport sync
from broker.core.turn cimport Turn
from broker.core.upkeep cimport housekeep, relieved

from broker.core import catalog
from broker.core.files import escape
from broker.core.recovery import open_known, open_log
from broker.core.settings import change, configure, effective

TRASH = '.deleted'


cdef class Engine:
    def __init__(self, Turn turn, Router router, root, limits, policy_for, report,
                 retention_for=None):
        """`root`: the folder of the logs, None = all in memory. `limits`: see Shared.

        `policy_for(name)` says when appends to a log are synced: 'always', 'none' or a period
        in seconds; `retention_for(name)` what it keeps, see settings.pyx: (max_age, max_bytes,
        max_msgs, keep, keep_bytes) with 0 for no limit, or None to keep what is not acked.
        `report(level, text, **fields)` writes a log line.
        """
        self.shared = Shared(turn, router, root, report, limits)
        self.policy_for = policy_for
        self.retention_for = retention_for or keep_all
        self.logs = {}
        self.by_bytes = {}
        self.problems = []

    def open(self, loop):
        """Recover what the folder holds, start keeping house; OSError, FormatError, MetaError."""
        self.loop = loop
        for worker in self.shared.workers:
            loop.add_reader(worker.event_fd, worker.reap)
        if self.shared.root is not None:
            os.makedirs(self.shared.root, exist_ok=True)
            with os.scandir(self.shared.root) as entries:
                folders = sorted(entry.name for entry in entries if entry.is_dir())
            collecting = gc.isenabled()
            gc.disable()        # very many new objects, and all of them stay
            try:
                self.open_folders(folders)
            finally:
                if collecting:
                    gc.enable()
        self.timer = loop.call_later(1.0, self.keep_house)

    cdef object open_folders(self, list folders):
        root = self.shared.root
        known = self.known_logs()
        folder_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in folders:
                path = f'{root}/{name}'
                if name.startswith(TRASH):
                    remove_later(path)
                    continue
                entry = known.pop(name, None)
                if entry is not None and catalog.is_still_so(folder_fd, entry):
                    log = open_known(self.shared, entry, self.policy_for, self.retention_for,
                                     self.problems)
                else:
                    log = open_log(self.shared, path, self.policy_for, self.retention_for,
                                   self.problems)
                if log is not None:
                    self.adopt(log)
        finally:
            os.close(folder_fd)

    def known_logs(self):
        """What the last stop left of each log, by folder."""
        try:
            return catalog.take(self.shared.root)
        except OSError as problem:
            self.problems.append(f'{problem}: all logs are looked at')
            return {}

    def watch(self, watcher):
        """Call watcher(log, cursor, made) when a log is made or deleted (cursor is None) or one
        of its cursors; at once, so it must not wait. By name: what it names may be gone again."""
        self.shared.watchers.append(watcher)

    def unwatch(self, watcher):
        """No more."""
        self.shared.watchers.remove(watcher)

    def adopt(self, Log log):
        """Make a log known by its name."""
        self.logs[log.name] = log
        self.by_bytes[log.subject] = log
        log.on_unused = self.delete_log
        log.touch()
        self.shared.changed(log.name, None, True)

    cdef Log find(self, const char *name, size_t n):
        return self.by_bytes.get(PyBytes_FromStringAndSize(name, <Py_ssize_t>n))

    def log(self, str name):
        """The log of that name, or None."""
        return self.logs.get(name)

    def open_log(self, str name, bint ephemeral=False, str face=None):
        """The log of that name, made if need be; an ephemeral one lives in memory. OSError.

        `face`: the protocol whose own it is to be, see Log.face; None leaves that as it is.
        """
        cdef Log log = self.logs.get(name)
        if log is not None:
            if face is not None and log.face != face:
                log.face = face
                log.save(True)
            return log
        folder = None
        if not ephemeral and self.shared.root is not None:
            folder = os.path.join(self.shared.root, escape(name))
            os.makedirs(folder, exist_ok=True)
        self.shared.turn.tick()
        try:
            return self.make_log(name, folder, ephemeral, face)
        except OSError as problem:
            if not relieved(self.shared, problem):
                raise
        return self.make_log(name, folder, ephemeral, face)

    cdef Log make_log(self, str name, folder, bint ephemeral, str face):
        cdef Log log
        log = Log(self.shared, name, folder, os.urandom(16), self.policy_for(name), ephemeral)
        log.face = face
        configure(log, self.policy_for, self.retention_for)
        try:
            log.save()
        except OSError:
            log.close(True)
            raise
        self.adopt(log)
        return log

    def settings_of(self, Log log):
        """What holds for a log: its own settings, and else what is configured."""
        return effective(log, self.policy_for, self.retention_for)

    def set_settings(self, Log log, dict settings):
        """Replace a log's own settings, now and for good. OSError: nothing has changed."""
        self.shared.turn.tick()
        change(log, settings, self.policy_for, self.retention_for)

    def delete_log(self, str name):
        """Forget a log, its cursors and its files. OSError: nothing has changed."""
        cdef Log log = self.logs.get(name)
        if log is None:
            return
        trash = None
        if log.folder is not None:
            # first of all: a folder that stays would be found by the next log of this name
            trash = os.path.join(self.shared.root, f'{TRASH}-{log.log_id.hex()}')
            os.rename(log.folder, trash)
        del self.logs[name]
        del self.by_bytes[log.subject]
        self.shared.touched.discard(log)
        gone = list(log.cursors)
        log.close(True)
        if trash is not None:
            remove_later(trash)
        for cursor in gone:
            self.shared.changed(name, cursor, False)
        self.shared.changed(name, None, False)

    def keep_house(self):
        """Every second: periodic syncs, files to close, space to give back."""
        cdef Log log
        self.shared.turn.tick()
        for log in list(self.shared.touched):
            housekeep(log)
        self.timer = self.loop.call_later(1.0, self.keep_house)

    @property
    def behind(self):
        """True while something that was accepted is not yet in its file, or not yet synced."""
        cdef Log log
        for log in self.logs.values():
            if log.waiting_bytes or log.syncs or log.settled_ticket < log.ticket:
                return True
        return not all(worker.idle for worker in self.shared.workers)

    async def settle(self):
        """Wait until everything accepted has been answered for."""
        while self.behind:
            await asyncio.sleep(self.shared.settle_poll)

    async def close(self):
        """Write, sync and close everything."""
        cdef Log log
        if self.timer is not None:
            self.timer.cancel()
        self.shared.turn.end()
        await self.settle()
        for log in self.logs.values():
            housekeep(log)
            if log.sync_policy != SYNC_NONE:
                sync(log)
        await self.settle()
        entries = []
        for log in self.logs.values():
            log.close()
            entries.append((log, catalog.entry_of(log)))
            log.abandon()
        for worker in self.shared.workers:
            worker.stop()
            worker.reap()
        self.finish_workers()
        if self.shared.root is not None:
            self.write_catalog(entries)

    def write_catalog(self, entries):
        """Leave behind what the logs are, for the next start; not if a disk has failed."""
        if self.shared.write_errors or self.shared.sync_errors:
            return
        try:
            catalog.save(self.shared.root, [
                entry for log, entry in entries
                if entry is not None and catalog.is_written(log)], self.problems)
        except OSError as problem:
            self.shared.report('warning', 'the next start must look at all logs',
                               reason=str(problem))

    def finish_workers(self):
        """Hand the event descriptors back to the loop."""
        for worker in self.shared.workers:
            if self.loop is not None:
                self.loop.remove_reader(worker.event_fd)
            worker.close()


def keep_all(name):
    """No limits."""
    return None


def remove_later(path):
    """Remove a folder without holding anybody up."""
    threading.Thread(target=shutil.rmtree, args=(path, True), daemon=True).start()
