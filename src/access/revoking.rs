//! Taking a key out of a keys file, which people write too: all else in it stays as it stands.

use std::ffi::{CStr, CString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::changing::{Patience, keep_name};
use super::keys_file::{parse, read_text};
use super::{Entry, KeyId};

/// The longest list of attributes of a file, and the longest value of one.
const LONGEST_ATTRIBUTE: usize = 65_536;

/// Removes the entry of this id, and returns it. A new file takes the place of the old one at once, with its owner, its mode
/// and its access list, so that a gateway reads the one or the other. What is beside the entry says whether it stays out after a
/// power cut.
pub fn revoke(id: &KeyId, file: &Path) -> io::Result<(Entry, io::Result<()>)> {
    // A link stays one.
    let file = file.canonicalize()?;
    let patience = Patience::new();
    loop {
        let old = patience.open(OpenOptions::new().read(true), &file)?;
        if old.metadata()?.nlink() > 1 {
            // Who reads it by another name would go on with what stood there before.
            return Err(io::Error::other(
                "the file has another name too (a hard link): remove the entry by hand",
            ));
        }
        let before = read_text(&file)?;
        let (entry, after) =
            without(id, &before).map_err(|problem| io::Error::new(ErrorKind::InvalidData, problem))?;
        let new = file.with_file_name(format!(".fencepost-{:016x}", rand::random::<u64>()));
        let replaced = replace(&old, &file, &before, &new, &after);
        if !matches!(replaced, Ok(true)) {
            // What went wrong is told; a file that stays behind does no harm.
            let _ = fs::remove_file(&new);
        }
        if replaced? {
            return Ok((entry, keep_name(&file)));
        }
        patience.pause("another program keeps changing the file")?;
    }
}

/// Puts a new file in the place of the old one, unless that has changed: then it returns `false`. Editors do not wait.
fn replace(old: &File, file: &Path, before: &str, new: &Path, after: &str) -> io::Result<bool> {
    write_like(old, new, after)?;
    if read_text(file)? != before {
        return Ok(false);
    }
    fs::rename(new, file).map(|()| true).map_err(|error| match error.kind() {
        // As of a container that has only this file from outside.
        ErrorKind::ResourceBusy => {
            io::Error::other("the file is a mount of its own: remove the entry by hand")
        }
        _ => error,
    })
}

/// Writes a new file that the same users can read.
fn write_like(old: &File, new: &Path, text: &str) -> io::Result<()> {
    let about = old.metadata()?;
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (about.uid(), about.gid()) {
        fchown(&file, Some(about.uid()), Some(about.gid())).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("a new file cannot get its owner ({error}): run this as its owner"),
            )
        })?;
    }
    copy_attributes(old, &file)?;
    file.set_permissions(PermissionsExt::from_mode(about.mode() & 0o7777))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Gives a new file the attributes of the old one, and no others: its access list is one of them, and the directory may have
/// given it one of its own.
fn copy_attributes(old: &File, new: &File) -> io::Result<()> {
    let (wanted, given) = (attributes(old)?, attributes(new)?);
    let not_done = |name: &CStr| {
        let name = name.to_string_lossy().into_owned();
        move |error: Errno| {
            let problem =
                format!("a new file cannot get its attribute {name} ({error}): remove the entry by hand");
            io::Error::new(io::Error::from(error).kind(), problem)
        }
    };
    for (name, _) in given.iter().filter(|(name, _)| !wanted.iter().any(|(other, _)| other == name)) {
        fremovexattr(new, name).map_err(not_done(name))?;
    }
    for attribute @ (name, value) in &wanted {
        if !given.contains(attribute) {
            fsetxattr(new, name, value, XattrFlags::empty()).map_err(not_done(name))?;
        }
    }
    Ok(())
}

/// The attributes of a file that stand beside its owner and its mode; none on a file system that has no such thing.
fn attributes(file: &File) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = vec![0; LONGEST_ATTRIBUTE];
    let length = match flistxattr(file, &mut names[..]) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let names = names.get(..length).unwrap_or_default().split_inclusive(|byte| *byte == 0);
    let names = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    let with_value = |name: &CStr| {
        let mut value = vec![0; LONGEST_ATTRIBUTE];
        let length = fgetxattr(file, name, &mut value[..])?;
        value.truncate(length);
        Ok((name.to_owned(), value))
    };
    names.map(with_value).collect()
}

/// The entry, and the text without it: from its `[[key]]`, with the comment right above, to its last field.
fn without(id: &KeyId, text: &str) -> Result<(Entry, String), String> {
    let wrong = |error: super::KeysFileError| format!("the file is wrong: {error}");
    let mut left = parse(text).map_err(wrong)?;
    let at = left.iter().position(|entry| entry.id == *id);
    let at = at.ok_or("no key there has this id: `fencepost key list` shows the ids")?;
    let entry = left.remove(at);
    if left.is_empty() {
        return Err("it is the only key, and gateways go on with the old file if the new one has no key: make its successor first, \
                    or set its expires to a time that is over"
            .to_owned());
    }
    let lines = entries(text).get(at).map(|entry| with_comment(text, entry.start)..line_end(text, entry.end));
    let parts = lines.and_then(|lines| text.get(..lines.start).zip(text.get(lines.end..)));
    // The gap below it goes too.
    let parts = parts.map(|(above, below)| (above, below.trim_start_matches(['\n', '\r'])));
    let after = parts.map(|(above, below)| format!("{above}{below}")).unwrap_or_default();
    let ids =
        |entries: &[Entry]| entries.iter().map(|entry| entry.id.as_str().to_owned()).collect::<Vec<_>>();
    match parse(&after) {
        Ok(entries) if ids(&entries) == ids(&left) => Ok((entry, after)),
        _ => Err("its entry does not stand by itself below a [[key]]: remove it by hand".to_owned()),
    }
}

/// Where each `[[key]]` stands, to the end of its last field.
fn entries(text: &str) -> Vec<Range<usize>> {
    let Ok(document) = DeTable::parse(text) else { return Vec::new() };
    let keys = document.get_ref().iter().find(|(name, _)| name.get_ref() == "key");
    let keys = keys.and_then(|(_, keys)| keys.get_ref().as_array());
    let whole = |key: &Spanned<DeValue>| {
        let fields = key.get_ref().as_table().into_iter().flatten();
        let end = fields.map(|(_, value)| value.span().end).max();
        key.span().start..end.unwrap_or_default().max(key.span().end)
    };
    keys.into_iter().flatten().map(whole).collect()
}

/// Where the line ends.
fn line_end(text: &str, at: usize) -> usize {
    text.get(at..).and_then(|rest| rest.find('\n')).map_or(text.len(), |end| at + end + 1)
}

/// Where the line begins, or the comment that stands right above it.
fn with_comment(text: &str, at: usize) -> usize {
    // What some editors write in front of all text belongs to no line.
    let first = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let line = |at: usize| {
        let above = text.get(..at).and_then(|above| above.rfind('\n'));
        above.map_or(first, |end| end + 1)
    };
    let mut begin = line(at);
    while begin > first {
        let above = line(begin - 1);
        if !text.get(above..begin).is_some_and(|line| line.trim_start().starts_with('#')) {
            break;
        }
        begin = above;
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str) -> String {
        format!(
            "[[key]]\nid = \"{id}\"\nname = \"[[key]]\"\nsecret_sha256 = \"{}\"\nevery_key = true # all\nallow = [\"list\"]\n",
            "0".repeat(64)
        )
    }

    fn id(text: &str) -> KeyId {
        KeyId::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn the_rest_of_the_file_stays_as_it_stands() {
        let [a, b, c] = ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"].map(entry);
        let text = format!(
            "\u{feff}# Our keys.\n\n{a}\n# --- Others ---\n\n# The second,\n# of two.\n{b}\n\n # The third.\n{c}# The end.\n"
        );
        for (gone, expected) in [
            (
                "aaaaaaaaaaaa",
                format!(
                    "\u{feff}# Our keys.\n\n# --- Others ---\n\n# The second,\n# of two.\n{b}\n\n # The third.\n{c}# The end.\n"
                ),
            ),
            (
                "bbbbbbbbbbbb",
                format!("\u{feff}# Our keys.\n\n{a}\n# --- Others ---\n\n # The third.\n{c}# The end.\n"),
            ),
            (
                "cccccccccccc",
                format!(
                    "\u{feff}# Our keys.\n\n{a}\n# --- Others ---\n\n# The second,\n# of two.\n{b}\n\n# The end.\n"
                ),
            ),
        ] {
            let after = without(&id(gone), &text).map(|(entry, after)| (entry.id, after));
            assert_eq!(after, Ok((id(gone), expected)), "{gone}");
        }
        let text = format!("\u{feff}{a}{b}");
        let after = without(&id("aaaaaaaaaaaa"), &text).map(|(_, after)| after);
        assert_eq!(after, Ok(format!("\u{feff}{b}")));
    }

    #[test]
    fn what_cannot_be_taken_out_alone_stays() {
        let (a, b) = (entry("aaaaaaaaaaaa"), entry("bbbbbbbbbbbb"));
        let inline = |entry: &str| {
            entry.trim_start_matches("[[key]]\n").replace(" # all", "").trim_end().replace('\n', ", ")
        };
        let list = format!("key = [{{ {} }}, {{ {} }}]\n", inline(&a), inline(&b));
        for (text, said) in [
            (a.clone(), "the only key"),
            (format!("{a}{b}nonsense"), "the file is wrong: line"),
            (b.clone(), "no key there"),
            (list, "by hand"),
        ] {
            let problem = without(&id("aaaaaaaaaaaa"), &text).err().unwrap_or_default();
            assert!(problem.contains(said), "{problem}: {text}");
        }
    }
}
