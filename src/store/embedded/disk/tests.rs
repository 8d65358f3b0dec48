//! What is locked, what is where it was, and what is only read.

use super::*;

#[test]
fn a_scratch_reads_what_was_written_to_it_and_leaves_the_file_as_it_was() {
    let Ok(path) = tempfile::NamedTempFile::new().map(|file| file.into_temp_path()) else { panic!() };
    let mut model: Vec<u8> = (0..20_000_u32).map(|at| at as u8).collect();
    assert!(fs::write(&path, &model).is_ok());
    let (before, Ok(scratch)) = (model.clone(), Scratch::of(&path)) else { panic!("it cannot be read") };
    for length in [16_384, 30_000] {
        assert!(scratch.set_len(length).is_ok());
        model.resize(length as usize, 0);
    }
    for (offset, length, byte) in
        [(0, 1, 1), (4_095, 2, 2), (8_192, 4_096, 3), (5_000, 9_000, 4), (29_999, 1, 5)]
    {
        assert!(scratch.write(offset as u64, &vec![byte; length]).is_ok());
        model[offset..offset + length].fill(byte);
    }
    for (offset, length) in [(0, 30_000), (4_000, 200), (12_287, 2), (19_999, 10_001), (29_999, 1)] {
        let mut read = vec![0; length];
        assert!(scratch.read(offset as u64, &mut read).is_ok());
        assert!(read == model[offset..offset + length], "{offset}, {length}");
    }
    assert!(fs::read(&path).is_ok_and(|after| after == before));
}

/// The file system says that it has no locks, or it fails to ask another machine for one.
#[test]
fn a_file_that_no_kind_of_lock_works_on_is_refused() {
    let kinds = [ErrorKind::Unsupported, ErrorKind::Other, ErrorKind::PermissionDenied, ErrorKind::NotFound];
    for kind in kinds {
        let failed = || Err(TryLockError::Error(kind.into()));
        for other in kinds {
            let Err(refused) = is_locked(failed(), || Err(other.into())) else { panic!("{kind}, {other}") };
            assert!(refused.to_string().contains("does not lock it"), "{refused}");
            // The kinds of some errors have a meaning of their own at the start.
            assert_eq!(refused.kind(), ErrorKind::Other, "{kind}, {other}");
        }
        for is_ours in [true, false] {
            assert!(is_locked(failed(), || Ok(is_ours)).is_ok_and(|locked| locked == is_ours), "{kind}");
        }
    }
    let unasked = || -> io::Result<bool> { panic!("the first kind has told") };
    assert!(is_locked(Ok(()), unasked).is_ok_and(|locked| locked));
    assert!(is_locked(Err(TryLockError::WouldBlock), unasked).is_ok_and(|locked| !locked));
}

#[test]
fn what_is_locked_is_locked_for_no_other() {
    let Ok(path) = tempfile::NamedTempFile::new().map(|file| file.into_temp_path()) else { panic!() };
    let (Ok(first), Ok(second)) = (File::open(&path), File::open(&path)) else {
        panic!("it cannot be opened")
    };
    assert!(lock(&first).is_ok_and(|locked| locked));
    assert!(lock(&second).is_ok_and(|locked| !locked));
}

/// A file that says that it cannot be made longer or shorter, after it was.
#[derive(Debug)]
struct LateFailure(FileBackend);

impl StorageBackend for LateFailure {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        Err(ErrorKind::TimedOut.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Else a gateway would take it for what another program has done, and grant nothing until a restart.
#[test]
fn a_length_that_was_changed_by_a_call_that_failed_is_no_change_of_another_program() {
    let Ok((file, path)) = tempfile::NamedTempFile::new().map(tempfile::NamedTempFile::into_parts) else {
        panic!("no file")
    };
    let Ok(Ok(backend)) = file.try_clone().map(FileBackend::new) else { panic!("no backend") };
    let Ok(disk) = Disk::at(&path, LateFailure(backend), file) else { panic!("it cannot be opened") };
    let handle = Handle(Arc::new(disk));
    assert!(handle.0.check_place().is_ok());
    assert!(handle.set_len(4_096).is_err());
    assert!(handle.0.check_place().is_ok(), "its own doing");
    assert!(fs::write(&path, "cut").is_ok());
    assert!(handle.0.check_place().is_err(), "another program has cut it");
}

/// A gateway that took the one for the other would serve beside the gateway of the file that stands there now.
#[test]
fn a_file_that_is_replaced_while_it_is_opened_is_not_taken_for_its_successor() {
    let Ok(directory) = tempfile::tempdir() else { panic!("no directory") };
    let path = directory.path().join("locks.redb");
    let files: Vec<_> = (0..1_000).map(|n| directory.path().join(n.to_string())).collect();
    for file in &files {
        // It is not removed, so that no other file has its number.
        let made = fs::write(file, "any").and_then(|()| fs::hard_link(file, file.with_extension("kept")));
        assert!(made.is_ok(), "{made:?}");
    }
    assert!(fs::hard_link(&files[0], &path).is_ok());
    let replacing = std::thread::spawn({
        let path = path.clone();
        move || files.iter().all(|file| fs::rename(file, &path).is_ok())
    });
    while !replacing.is_finished() {
        let Ok(disk) = Disk::open(&path) else { continue };
        let Some(Ok(about)) = disk.file.as_ref().map(File::metadata) else { panic!("no file") };
        assert_eq!(disk.place, Some((about.dev(), about.ino())));
    }
    assert!(replacing.join().is_ok_and(|replaced| replaced));
    assert!(Disk::open(&path).is_ok());
}
