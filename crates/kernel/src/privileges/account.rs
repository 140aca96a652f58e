//! An account to run as, looked up in `/etc/passwd` and `/etc/group`.

use std::fs;

use super::PrivilegeError;

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// The account of programs that have none of their own.
const NOBODY: &str = "nobody";
/// Its usual number, which is also that of users without a number in a user namespace (user_namespaces(7)).
const OVERFLOW_USER: u32 = 65534;
/// To setresuid(2) and setresgid(2) it means "leave as it is".
const UNCHANGED: u32 = u32::MAX;

/// An ordinary user and group to run as; neither is root's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// Looks up `USER` or `USER:GROUP`, each a name or a number. Without a group it is the user's own, from
    /// `/etc/passwd`; a number that has no line there needs its group said.
    ///
    /// The two files are read as they are (passwd(5), group(5)), without the C library's name service switch:
    /// that loads whatever modules nsswitch.conf names into a process that is still root, and some of them
    /// talk to directory servers over the network that is being set up. A daemon's account is a local one;
    /// one that lives elsewhere can be given by its numbers.
    ///
    /// # Errors
    /// [`PrivilegeError::UnknownUser`], [`PrivilegeError::UnknownGroup`]; [`PrivilegeError::Root`] for user
    /// or group 0; [`PrivilegeError::Read`] where one of the files cannot be read.
    pub fn find(text: &str) -> Result<Self, PrivilegeError> {
        let read = |path| fs::read_to_string(path).map_err(|source| PrivilegeError::Read { path, source });
        Self::find_in(text, &read(USERS)?, &read(GROUPS)?)
    }

    /// The user's number; never 0.
    pub const fn uid(self) -> u32 {
        self.uid
    }

    /// The group's number; never 0.
    pub const fn gid(self) -> u32 {
        self.gid
    }

    fn find_in(text: &str, users: &str, groups: &str) -> Result<Self, PrivilegeError> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let (uid, own_group) =
            find_user(user, users).ok_or_else(|| PrivilegeError::UnknownUser { name: user.to_owned() })?;
        let gid = match group {
            Some(group) => find_group(group, groups),
            None => own_group,
        };
        let unknown = || PrivilegeError::UnknownGroup { name: group.unwrap_or(user).to_owned() };
        let gid = gid.ok_or_else(unknown)?;
        if uid == 0 || gid == 0 {
            return Err(PrivilegeError::Root { account: text.to_owned() });
        }
        Ok(Self { uid, gid })
    }
}

/// Whether other programs may run as this user, too: nobody's number, or the number that stands for unknown
/// users. Where `/etc/passwd` cannot be read, any user may be nobody.
pub fn is_shared_account(uid: u32) -> bool {
    match fs::read_to_string(USERS) {
        Ok(users) => is_shared_in(uid, &users),
        Err(_) => true,
    }
}

fn is_shared_in(uid: u32, users: &str) -> bool {
    uid == OVERFLOW_USER || find_user(NOBODY, users).is_some_and(|(nobody, _)| nobody == uid)
}

/// The user's number and, where the user has a line, the group in it: `name:password:uid:gid:…`.
fn find_user(user: &str, users: &str) -> Option<(u32, Option<u32>)> {
    let number = parse_id(user);
    let line = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = parse_id(fields.nth(1)?)?;
        let gid = parse_id(fields.next()?)?;
        (name == user || number == Some(uid)).then_some((uid, Some(gid)))
    });
    line.or(number.map(|uid| (uid, None)))
}

/// The group's number: `name:password:gid:…`.
fn find_group(group: &str, groups: &str) -> Option<u32> {
    let line = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| parse_id(fields.nth(1)?)).flatten()
    });
    line.or_else(|| parse_id(group))
}

fn parse_id(text: &str) -> Option<u32> {
    // `parse` takes a plus sign, which no file has.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&id| digits && id != UNCHANGED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
                          broken line\n\
                          bentpipe:x:990:991:TCP proxy:/nonexistent:/usr/sbin/nologin\n\
                          wheel:x:77:0::/:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nbentpipe:x:991:\nproxies:x:992:bentpipe\n";

    fn find(text: &str) -> Result<(u32, u32), String> {
        let found = Account::find_in(text, PASSWD, GROUP).map_err(|error| error.to_string())?;
        Ok((found.uid(), found.gid()))
    }

    #[test]
    fn an_account_is_a_name_or_a_number_with_or_without_a_group() {
        for (text, expected) in [
            ("bentpipe", (990, 991)),
            ("990", (990, 991)),
            ("bentpipe:proxies", (990, 992)),
            ("990:992", (990, 992)),
            ("5000:6000", (5000, 6000)),
            ("wheel:proxies", (77, 992)),
        ] {
            assert_eq!(find(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_unknown_user_comes_with_the_line_that_makes_one() {
        for text in ["nosuch", "", "nosuch:proxies", "-1", "+990", "4294967296", "broken line"] {
            let error = find(text).unwrap_err();
            assert!(error.contains("useradd --system"), "{text}: {error}");
        }
    }

    #[test]
    fn the_number_that_means_unchanged_is_no_account() {
        assert!(find("4294967295").is_err());
        assert!(find("bentpipe:4294967295").is_err());
    }

    #[test]
    fn an_unknown_group_is_named_and_a_bare_number_asks_for_one() {
        assert!(find("bentpipe:nosuch").unwrap_err().contains("no group \"nosuch\""));
        assert!(find("5000").unwrap_err().contains("USER:GROUP"));
    }

    #[test]
    fn nobodys_account_is_shared_whatever_its_number() {
        let elsewhere = format!("{PASSWD}nobody:x:99:99::/:/usr/sbin/nologin\n");
        assert!(is_shared_in(99, &elsewhere) && is_shared_in(65534, &elsewhere));
        assert!(is_shared_in(65534, PASSWD));
        assert!(!is_shared_in(99, PASSWD) && !is_shared_in(990, &elsewhere) && !is_shared_in(0, &elsewhere));
    }

    #[test]
    fn roots_user_and_group_are_refused() {
        for text in ["root", "0", "0:991", "bentpipe:root", "bentpipe:0", "wheel"] {
            assert!(find(text).unwrap_err().contains("root"), "{text}");
        }
    }
}
