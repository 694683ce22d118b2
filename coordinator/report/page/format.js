// Figures as people read them; the same units as base/units.h.

function threeDigits(value) {
  if (value >= 99.95) return value.toFixed(0);
  if (value >= 9.995) return value.toFixed(1);
  return value.toFixed(2);
}

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0) return "−" + formatSeconds(-seconds);
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return threeDigits(seconds * 1e6) + " µs";
  if (seconds < 1) return threeDigits(seconds * 1e3) + " ms";
  if (seconds < 60) return threeDigits(seconds) + " s";
  const whole = Math.round(seconds);
  if (whole < 3600) {
    return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  }
  return `${Math.floor(whole / 3600)} h ` +
      `${String(Math.floor(whole % 3600 / 60)).padStart(2, "0")} min`;
}

function scaled(value, base, units) {
  let unit = 0;
  while (value >= base && unit + 1 < units.length) {
    value /= base;
    ++unit;
  }
  const digits = unit === 0 && Number.isInteger(value) ? String(value)
                                                       : threeDigits(value);
  return units[unit] ? `${digits} ${units[unit]}` : digits;
}

function formatCount(count) {
  return scaled(count, 1000, ["", "k", "M", "G", "T"]);
}

function formatBytes(bytes) {
  return scaled(bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
}

function formatPercent(share) {
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

function formatTick(value) {
  const size = Math.abs(value);
  if (size >= 1000) return formatCount(value);
  if (size === 0) return "0";
  return String(Number(value.toPrecision(3)));
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// "pipeline 2 × data 1 × tensor 2, ZeRO 1, micro-batch 2". What is only planned
// so far, and an order of passes other than 1f1b, where the layout has it.
function formatLayout(layout) {
  const axes = ["pipeline", "data", "tensor"]
      .map((axis) => `${axis} ${layout[axis] ?? "?"}`);
  if (layout.context > 1) axes.push(`context ${layout.context}`);
  const rest = [];
  if (layout.expert > 1) rest.push(`experts over ${layout.expert}`);
  if (layout.interleave > 1) rest.push(`${layout.interleave} chunks a stage`);
  if (isNumber(layout.zero)) rest.push(`ZeRO ${layout.zero}`);
  if (layout.data_groups > 1) rest.push(`${layout.data_groups} data groups`);
  if (layout.gradient_reduction === "bf16") rest.push("gradients reduced in bf16");
  if (layout.gradient_reduction === "bf16_across") rest.push("gradients in bf16 between groups");
  if ((layout.recompute ?? "none") !== "none") rest.push(`recompute ${layout.recompute}`);
  if (isNumber(layout.micro_batch)) rest.push(`micro-batch ${layout.micro_batch}`);
  if ((layout.schedule ?? "1f1b") !== "1f1b") rest.push(layout.schedule.replaceAll("_", " "));
  return [axes.join(" × "), ...rest].join(", ");
}
