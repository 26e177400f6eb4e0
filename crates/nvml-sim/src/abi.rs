//! Pointers passed in by C callers.
//!
//! Each type wraps a pointer transparently and appears in the signatures of the exported functions.
//! Outside of tests there is no constructor, so each value comes from a C caller. NVML's contract
//! obliges the caller to pass null or a pointer that is valid for the documented reads and writes.
//! Every unsafe block below relies on this.

use std::ffi::{CStr, c_char, c_void};

use crate::error_code::{ErrorCode, NvmlResult};

/// A device handle. The library never dereferences the handle. It only compares the handle with the
/// addresses that it has handed out.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceHandle(pub(crate) *const c_void);

/// Handle of an event set or a GPM sample. It is a number in the form of a pointer, and the library
/// never dereferences it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpaqueHandle(pub(crate) *const c_void);

/// A C type that can be written to a caller's memory.
pub(crate) trait CValue: Copy {
    /// Writes the value. A struct writes its members but not its padding. Padding is undefined in
    /// Rust, so copying it could leak stack content to the caller.
    ///
    /// # Safety
    ///
    /// `at` must be valid for a write of `Self`. It need not be aligned.
    unsafe fn write(self, at: *mut Self) {
        // SAFETY: guaranteed by the caller of this function.
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
            // SAFETY: the element is within the array that the caller guarantees to be valid.
            unsafe { CValue::write(value, at.cast::<T>().wrapping_add(index)) };
        }
    }
}

/// Pointer to one value that the library writes, or reads and writes.
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

    pub(crate) fn put(self, value: T) -> NvmlResult {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so by the caller's contract it is valid for a write of
        // `T`. The write assumes no alignment.
        unsafe { CValue::write(value, self.0) };
        Ok(())
    }

    pub(crate) fn get(self) -> Result<T, ErrorCode> {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so by the caller's contract it is valid for a read of
        // `T`, which is a plain C type.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn change(self, change: impl FnOnce(&mut T)) -> NvmlResult {
        let mut value = self.get()?;
        change(&mut value);
        self.put(value)
    }

    /// The `version` member at the start of every versioned struct.
    pub(crate) fn version(self) -> Result<u32, ErrorCode> {
        OutPtr::<u32>(self.0.cast()).get()
    }

    /// The memory right after the value, where the caller's struct continues.
    pub(crate) fn after<U>(self) -> OutArray<U> {
        OutArray(self.0.wrapping_add(1).cast())
    }

    /// The same address as a pointer to a later version of the struct. Call this only after
    /// [`Self::version`] has shown that the C caller passed that later version.
    pub(crate) fn extended<U>(self) -> OutPtr<U> {
        OutPtr(self.0.cast())
    }

    /// Changes a struct if its `version` member matches.
    pub(crate) fn change_version(self, version: u32, change: impl FnOnce(&mut T)) -> NvmlResult {
        if self.version()? == struct_version::<T>(version) {
            self.change(change)
        } else {
            Err(ErrorCode::VERSION_MISMATCH)
        }
    }
}

/// The `version` member of a struct: its size, with the version number in the highest byte.
pub(crate) const fn struct_version<T>(version: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "structs are far smaller than 2^24 bytes")]
    let size = size_of::<T>() as u32;
    size | version << 24
}

/// Pointer to an array.
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

    /// Writes the values. The C caller has given a count, and the number of values must not exceed
    /// this count.
    pub(crate) fn put(self, values: &[T]) -> NvmlResult {
        for (index, value) in values.iter().enumerate() {
            self.at(index)?.put(*value)?;
        }
        Ok(())
    }

    /// Pointer to one element. The C caller has given a count, and `index` must be below this
    /// count.
    pub(crate) fn at(self, index: usize) -> Result<OutPtr<T>, ErrorCode> {
        if self.0.is_null() {
            Err(ErrorCode::INVALID_ARGUMENT)
        } else {
            Ok(OutPtr(self.0.wrapping_add(index)))
        }
    }

    /// Writes a list as NVML does: `count` holds the capacity and receives the number of elements.
    pub(crate) fn fill(self, count: OutPtr<u32>, values: &[T]) -> NvmlResult {
        let capacity = count.get()?;
        let needed = u32::try_from(values.len()).map_err(|_| ErrorCode::UNKNOWN)?;
        count.put(needed)?;
        if capacity < needed {
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        self.put(values)
    }
}

/// Pointer to a text buffer.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextBuffer(*mut c_char);

impl TextBuffer {
    #[cfg(test)]
    pub(crate) fn to(bytes: &mut [c_char]) -> Self {
        Self(bytes.as_mut_ptr())
    }

    /// Writes the text and a NUL into a buffer of `length` bytes.
    pub(crate) fn put(self, length: u32, text: &str) -> NvmlResult {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        let bytes = text.as_bytes();
        if bytes.len() >= length as usize {
            return Err(ErrorCode::INSUFFICIENT_SIZE);
        }
        // SAFETY: the pointer is not null, so by the caller's contract it is valid for `length`
        // bytes, which is more than the text has. The text belongs to this library, so the ranges
        // cannot overlap.
        unsafe {
            self.0.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            self.0.add(bytes.len()).write(0);
        }
        Ok(())
    }
}

/// A C string argument.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextArg(*const c_char);

impl TextArg {
    #[cfg(test)]
    pub(crate) fn new(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// A copy of the string. Invalid UTF-8 is replaced, so the copy then matches no identifier.
    pub(crate) fn get(self) -> Result<String, ErrorCode> {
        if self.0.is_null() {
            return Err(ErrorCode::INVALID_ARGUMENT);
        }
        // SAFETY: the pointer is not null, so by the caller's contract the string is NUL-terminated
        // and does not change during the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Text for a fixed-size struct member, truncated and NUL-terminated.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [u8; N] {
    let mut text_bytes = [0; N];
    for (slot, byte) in text_bytes.iter_mut().zip(text.bytes()).take(N.saturating_sub(1)) {
        *slot = byte;
    }
    text_bytes
}

#[cfg(test)]
mod tests {
    use crate::structs::PlatformInfo;

    use super::*;

    #[test]
    #[expect(clippy::cast_ptr_alignment, reason = "a caller's pointer may be unaligned")]
    fn padding_is_not_written() {
        let mut memory = [0xaa_u8; size_of::<PlatformInfo>()];
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
        OutPtr(memory.as_mut_ptr().cast::<PlatformInfo>()).put(info).unwrap();
        assert_eq!(memory[..4], [2, 0, 0, 0]);
        assert_eq!(memory[36..], [0, 0, 1, 0, 1, 0xaa, 0xaa, 0xaa]);
    }
}
