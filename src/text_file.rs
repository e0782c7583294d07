//! Small text files that are replaced as a whole: in every crash state the old text or the new one is there.
//!
//! ```text
//! write f.tmp, sync → link f to f.bak.tmp, rename it to f.bak → rename f.tmp to f → sync the folder
//! ```
//!
//! Java reads the result in each of these states (it tries `f`, and its operators know `f.bak`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let staged = beside(path, ".tmp");
    let mut file = File::create(&staged)?;
    file.write_all(text)?;
    file.sync_all()?;
    let linked = beside(path, ".bak.tmp");
    let _ = fs::remove_file(&linked);
    match fs::hard_link(path, &linked) {
        Ok(()) => fs::rename(&linked, backup(path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::rename(&staged, path)?;
    File::open(folder)?.sync_all()
}

pub fn backup(path: &Path) -> PathBuf {
    beside(path, ".bak")
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_before_is_kept_beside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/on/demand/f.json");
        // text written, text of the backup afterwards
        for (text, want) in [("one", None), ("two", Some("one")), ("three", Some("two"))] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::read_to_string(backup(&path)).ok().as_deref(), want);
        }
        let names = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, 2, "no .tmp stays behind");
    }

    #[test]
    fn what_a_crash_left_behind_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "old").unwrap();
        fs::write(beside(&path, ".tmp"), "torn").unwrap();
        fs::write(beside(&path, ".bak.tmp"), "torn").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(backup(&path)).unwrap(), "old");
    }
}
