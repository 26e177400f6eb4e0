//! Exported functions that data-centre GPUs do not support or that are not simulated: vGPU, fans
//! and displays, MIG instance creation, and newer hardware.

/// Exports functions that return `NOT_SUPPORTED`. In the C calling convention, the caller cleans up
/// the arguments. A function without parameters may therefore be called with any arguments.
macro_rules! unsupported {
    ($($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            crate::library::on_node(stringify!($name), |_| Err(crate::error_code::ErrorCode::NOT_SUPPORTED))
        }
    )*};
}

/// Exports functions that return `NOT_SUPPORTED` for a device, or another error if the device is
/// unknown or lost.
macro_rules! unsupported_on_device {
    ($($name:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: crate::abi::DeviceHandle) -> std::ffi::c_int {
            crate::library::on_device(stringify!($name), device, |_| Err(crate::error_code::ErrorCode::NOT_SUPPORTED))
        }
    )*};
}

unsupported! {
    nvmlComputeInstanceDestroy, nvmlComputeInstanceGetInfo, nvmlComputeInstanceGetInfo_v2,
    nvmlDeviceDiscoverGpus, nvmlDeviceModifyDrainState, nvmlDeviceQueryDrainState,
    nvmlDeviceRemoveGpu, nvmlDeviceRemoveGpu_v2, nvmlGetBlacklistDeviceInfoByIndex,
    nvmlGetExcludedDeviceInfoByIndex, nvmlGetVgpuCompatibility, nvmlGetVgpuDriverCapabilities,
    nvmlGetVgpuVersion, nvmlGpuInstanceCreateComputeInstance,
    nvmlGpuInstanceCreateComputeInstanceWithPlacement, nvmlGpuInstanceDestroy,
    nvmlGpuInstanceGetActiveVgpus, nvmlGpuInstanceGetComputeInstanceById,
    nvmlGpuInstanceGetComputeInstancePossiblePlacements,
    nvmlGpuInstanceGetComputeInstanceProfileInfo, nvmlGpuInstanceGetComputeInstanceProfileInfoV,
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity, nvmlGpuInstanceGetComputeInstances,
    nvmlGpuInstanceGetCreatableVgpus, nvmlGpuInstanceGetInfo,
    nvmlGpuInstanceGetVgpuHeterogeneousMode, nvmlGpuInstanceGetVgpuSchedulerLog,
    nvmlGpuInstanceGetVgpuSchedulerState, nvmlGpuInstanceGetVgpuTypeCreatablePlacements,
    nvmlGpuInstanceSetVgpuHeterogeneousMode, nvmlGpuInstanceSetVgpuSchedulerState,
    nvmlInternalGetExportTable, nvmlSetVgpuVersion, nvmlSystemEventSetCreate,
    nvmlSystemEventSetFree, nvmlSystemEventSetWait, nvmlSystemRegisterEvents,
    nvmlSystemSetConfComputeGpusReadyState, nvmlSystemSetConfComputeKeyRotationThresholdInfo,
    nvmlSystemSetNvlinkBwMode, nvmlUnitGetDevices, nvmlUnitGetFanSpeedInfo,
    nvmlUnitGetHandleByIndex, nvmlUnitGetLedState, nvmlUnitGetPsuInfo, nvmlUnitGetTemperature,
    nvmlUnitGetUnitInfo, nvmlUnitSetLedState, nvmlVgpuInstanceClearAccountingPids,
    nvmlVgpuInstanceGetAccountingMode, nvmlVgpuInstanceGetAccountingPids,
    nvmlVgpuInstanceGetAccountingStats, nvmlVgpuInstanceGetEccMode,
    nvmlVgpuInstanceGetEncoderCapacity, nvmlVgpuInstanceGetEncoderSessions,
    nvmlVgpuInstanceGetEncoderStats, nvmlVgpuInstanceGetFBCSessions, nvmlVgpuInstanceGetFBCStats,
    nvmlVgpuInstanceGetFbUsage, nvmlVgpuInstanceGetFrameRateLimit,
    nvmlVgpuInstanceGetGpuInstanceId, nvmlVgpuInstanceGetGpuPciId, nvmlVgpuInstanceGetLicenseInfo,
    nvmlVgpuInstanceGetLicenseInfo_v2, nvmlVgpuInstanceGetLicenseStatus,
    nvmlVgpuInstanceGetMdevUUID, nvmlVgpuInstanceGetMetadata, nvmlVgpuInstanceGetPlacementId,
    nvmlVgpuInstanceGetRuntimeStateSize, nvmlVgpuInstanceGetType, nvmlVgpuInstanceGetUUID,
    nvmlVgpuInstanceGetVmDriverVersion, nvmlVgpuInstanceGetVmID,
    nvmlVgpuInstanceSetEncoderCapacity, nvmlVgpuTypeGetBAR1Info, nvmlVgpuTypeGetCapabilities,
    nvmlVgpuTypeGetClass, nvmlVgpuTypeGetDeviceID, nvmlVgpuTypeGetFbReservation,
    nvmlVgpuTypeGetFrameRateLimit, nvmlVgpuTypeGetFramebufferSize,
    nvmlVgpuTypeGetGpuInstanceProfileId, nvmlVgpuTypeGetGspHeapSize, nvmlVgpuTypeGetLicense,
    nvmlVgpuTypeGetMaxInstances, nvmlVgpuTypeGetMaxInstancesPerGpuInstance,
    nvmlVgpuTypeGetMaxInstancesPerVm, nvmlVgpuTypeGetName, nvmlVgpuTypeGetNumDisplayHeads,
    nvmlVgpuTypeGetResolution,
}

unsupported_on_device! {
    nvmlDeviceClearCpuAffinity, nvmlDeviceCreateGpuInstance,
    nvmlDeviceCreateGpuInstanceWithPlacement, nvmlDeviceFreezeNvLinkUtilizationCounter,
    nvmlDeviceGetActiveVgpus, nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2,
    nvmlDeviceGetAutoBoostedClocksEnabled, nvmlDeviceGetBridgeChipInfo, nvmlDeviceGetClkMonStatus,
    nvmlDeviceGetConfComputeGpuAttestationReport, nvmlDeviceGetCreatableVgpus,
    nvmlDeviceGetDriverModel, nvmlDeviceGetDriverModel_v2,
    nvmlDeviceGetGpuInstanceProfileInfoByIdV, nvmlDeviceGetGpuOperationMode, nvmlDeviceGetHostVgpuMode, nvmlDeviceGetHostname_v1,
    nvmlDeviceGetNumaNodeId, nvmlDeviceGetNvLinkUtilizationControl,
    nvmlDeviceGetNvLinkUtilizationCounter, nvmlDeviceGetNvlinkBwMode,
    nvmlDeviceGetNvlinkSupportedBwModes, nvmlDeviceGetPgpuMetadataString,
    nvmlDeviceGetSupportedVgpus, nvmlDeviceGetVgpuCapabilities,
    nvmlDeviceGetVgpuHeterogeneousMode, nvmlDeviceGetVgpuInstancesUtilizationInfo,
    nvmlDeviceGetVgpuMetadata, nvmlDeviceGetVgpuProcessUtilization,
    nvmlDeviceGetVgpuProcessesUtilizationInfo, nvmlDeviceGetVgpuSchedulerCapabilities,
    nvmlDeviceGetVgpuSchedulerLog, nvmlDeviceGetVgpuSchedulerState,
    nvmlDeviceGetVgpuTypeCreatablePlacements, nvmlDeviceGetVgpuTypeSupportedPlacements,
    nvmlDeviceGetVgpuUtilization, nvmlDevicePowerSmoothingActivatePresetProfile,
    nvmlDevicePowerSmoothingSetState, nvmlDevicePowerSmoothingUpdatePresetProfileParam,
    nvmlDeviceReadPRMCounters_v1, nvmlDeviceReadWritePRM_v1, nvmlDeviceResetNvLinkErrorCounters,
    nvmlDeviceResetNvLinkUtilizationCounter, nvmlDeviceSetAPIRestriction,
    nvmlDeviceSetAutoBoostedClocksEnabled, nvmlDeviceSetClockOffsets,
    nvmlDeviceSetConfComputeUnprotectedMemSize, nvmlDeviceSetCpuAffinity,
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled, nvmlDeviceSetDefaultFanSpeed_v2,
    nvmlDeviceSetDramEncryptionMode, nvmlDeviceSetDriverModel, nvmlDeviceSetFanControlPolicy,
    nvmlDeviceSetFanSpeed_v2, nvmlDeviceSetGpcClkVfOffset, nvmlDeviceSetGpuOperationMode,
    nvmlDeviceSetHostname_v1, nvmlDeviceSetMemClkVfOffset,
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold, nvmlDeviceSetNvLinkUtilizationControl,
    nvmlDeviceSetNvlinkBwMode, nvmlDeviceSetPowerMizerMode_v1, nvmlDeviceSetTemperatureThreshold,
    nvmlDeviceSetVgpuCapabilities, nvmlDeviceSetVgpuHeterogeneousMode,
    nvmlDeviceSetVgpuSchedulerState, nvmlDeviceSetVirtualizationMode,
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles,
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles, nvmlGpmMigSampleGet,
    nvmlGpmSetStreamingEnabled,
}
