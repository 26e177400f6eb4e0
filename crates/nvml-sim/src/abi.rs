//! Pointers that a caller of the C interface gave us.
//!
//! The types here are transparent over pointers, stand in the signatures of the exported functions, and have no
//! other constructor outside of tests: each comes from a C caller, whose part of NVML's contract is that it is
//! null or valid for what the function's documentation says is read or written. That is what every block below
//! rests on.

use std::ffi::{CStr, c_char, c_void};

use crate::error_code::{ErrorCode, NvmlResult};

/// A device's handle. Never followed: it is compared with the addresses that we gave out.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceHandle(pub(crate) *const c_void);

/// The handle of an event set or of a sample: a number of ours in the shape of a pointer, never followed.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpaqueHandle(pub(crate) *const c_void);

/// A C type that a caller has room for.
pub(crate) trait CValue: Copy {
    /// Writes the value. A struct writes its members and not the padding between them: that has no
    /// defined content in Rust, so an optimized build would hand out what was on the stack.
    ///
    /// # Safety
    /// `at` must be valid for a write of `Self`; it need not be aligned.
    unsafe fn write(self, at: *mut Self) {
        // SAFETY: as the caller of this function warrants.
        unsafe { at.write_unaligned(self) };
    }
}

macro_rules! plain_values {
    ($($type:ty),*) => {$( impl CValue for $type {} )*};
}

plain_values!(
    u8,
    u32,
    i32,
    u64,
    i64,
    f64,
    *const c_char,
    *const c_void,
    DeviceHandle,
    OpaqueHandle
);

impl<T: CValue, const N: usize> CValue for [T; N] {
    unsafe fn write(self, at: *mut Self) {
        for (index, value) in self.into_iter().enumerate() {
            // SAFETY: the element is inside of what the caller warrants to be valid.
            unsafe { CValue::write(value, at.cast::<T>().wrapping_add(index)) };
        }
    }
}

/// Where one value goes, or comes from and goes.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct OutPtr<T>(*mut T);

impl<T> Clone for OutPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for OutPtr<T> {}

impl<T: CValue> OutPtr<T> {
    #[cfg(test)]
    pub(crate) fn to(value: &mut T) -> Self {
        Self(value)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the value.
    pub(crate) fn put(self, value: T) -> NvmlResult {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the caller's contract valid for a write of `T`; no alignment is assumed.
        unsafe { CValue::write(value, self.0) };
        Ok(())
    }

    /// Reads the value.
    pub(crate) fn get(self) -> Result<T, ErrorCode> {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the caller's contract valid for a read of `T`, which is a plain C type.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Reads, changes and writes the value.
    pub(crate) fn change(self, change: impl FnOnce(&mut T)) -> NvmlResult {
        let mut value = self.get()?;
        change(&mut value);
        self.put(value)
    }

    /// The `version` that every versioned struct begins with.
    pub(crate) fn version(self) -> Result<u32, ErrorCode> {
        OutPtr::<u32>(self.0.cast()).get()
    }

    /// What follows the value in memory: the caller's struct goes on there.
    pub(crate) fn after<U>(self) -> OutArray<U> {
        OutArray(self.0.wrapping_add(1).cast())
    }

    /// The same place as that of a later version of the struct, which its `version` said it is.
    pub(crate) fn extended<U>(self) -> OutPtr<U> {
        OutPtr(self.0.cast())
    }

    /// Changes a struct whose `version` says that it is the one we know as number `version`.
    pub(crate) fn change_version(self, version: u32, change: impl FnOnce(&mut T)) -> NvmlResult {
        if self.version()? == struct_version::<T>(version) {
            self.change(change)
        } else {
            Err(ErrorCode::VERSION_MISMATCH)
        }
    }
}

/// The number that a versioned struct begins with: its size, and its version in the highest byte.
pub(crate) const fn struct_version<T>(version: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "structs are far smaller than 2^24 bytes")]
    let size = size_of::<T>() as u32;
    size | version << 24
}

/// Where values in a row go.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct OutArray<T>(*mut T);

impl<T> Clone for OutArray<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for OutArray<T> {}
impl<T> CValue for OutArray<T> {}

impl<T: CValue> OutArray<T> {
    #[cfg(test)]
    pub(crate) fn to(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr())
    }

    #[cfg(test)]
    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the values; the caller says through a count that there is room for them.
    pub(crate) fn put(self, values: &[T]) -> NvmlResult {
        for (index, value) in values.iter().enumerate() {
            self.at(index)?.put(*value)?;
        }
        Ok(())
    }

    /// The place of one value, which the caller says is there.
    pub(crate) fn at(self, index: usize) -> Result<OutPtr<T>, ErrorCode> {
        if self.0.is_null() {
            Err(ErrorCode::INVALID_ARGUMENT)
        } else {
            Ok(OutPtr(self.0.wrapping_add(index)))
        }
    }

    /// NVML's way of handing out lists: `count` says how many there is room for and is told how many there are.
    pub(crate) fn fill(self, count: OutPtr<u32>, values: &[T]) -> NvmlResult {
        let room = count.get()?;
        let needed = u32::try_from(values.len()).map_err(|_| ErrorCode::UNKNOWN)?;
        count.put(needed)?;
        if room < needed {
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        self.put(values)
    }
}

/// Where text goes.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextBuffer(*mut c_char);

impl TextBuffer {
    #[cfg(test)]
    pub(crate) fn to(bytes: &mut [c_char]) -> Self {
        Self(bytes.as_mut_ptr())
    }

    /// Writes the text and its end, for which there are `length` bytes.
    pub(crate) fn put(self, length: u32, text: &str) -> NvmlResult {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        let bytes = text.as_bytes();
        if bytes.len() >= length as usize {
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        // SAFETY: not null, so by the caller's contract valid for `length` bytes, which are more than the
        // text has; the text is ours and cannot overlap.
        unsafe {
            self.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.add(bytes.len()).write(0);
        }
        Ok(())
    }
}

/// TextArg from the caller.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextArg(*const c_char);

impl TextArg {
    #[cfg(test)]
    pub(crate) fn new(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// A copy of it; bytes that are no text make it match nothing.
    pub(crate) fn get(self) -> Result<String, ErrorCode> {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the caller's contract it ends in a nought and stays as it is during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// TextArg in a struct: cut to the room that there is, and ended.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [u8; N] {
    let mut room = [0; N];
    for (place, byte) in room.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *place = byte;
    }
    room
}

#[cfg(test)]
mod tests {
    use crate::structs::PlatformInfo;

    use super::*;

    #[test]
    #[expect(clippy::cast_ptr_alignment, reason = "a caller's pointer need not be aligned")]
    fn padding_stays_as_the_caller_had_it() {
        let mut room = [0xaa_u8; size_of::<PlatformInfo>()];
        let info = PlatformInfo {
            version: 2,
            ib_guid: [0; 16],
            chassis_serial: [0; 16],
            slot: 0,
            tray: 0,
            host: 1,
            peer_type: 0,
            module: 1,
        };
        OutPtr(room.as_mut_ptr().cast::<PlatformInfo>()).put(info).unwrap();
        assert_eq!(room[..4], [2, 0, 0, 0]);
        assert_eq!(room[36..], [0, 0, 1, 0, 1, 0xaa, 0xaa, 0xaa]);
    }
}
