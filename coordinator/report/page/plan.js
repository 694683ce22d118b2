// The chosen layout, what it was predicted to do, and why the others lost.

function predictionOf(entry) {
  return entry?.predicted ?? entry?.prediction ?? {};
}

function memoryOf(prediction) {
  return prediction.memory_bytes_per_device ?? prediction.memory_bytes;
}

function optional(value, format) {
  return isNumber(value) ? format(value) : "–";
}

function planRow(layout, prediction, reason, className) {
  return {className, cells: [
    formatLayout(layout ?? {}),
    optional(prediction.step_time_s, formatSeconds),
    optional(memoryOf(prediction), formatBytes),
    optional(prediction.bubble_fraction, formatPercent),
    optional(prediction.exposed_communication_fraction, formatPercent),
    reason]};
}

function drawPlan(section, data) {
  section.append(...missingNotice(data, ["plan"]));
  const plan = data.plan;
  if (!plan) return;
  for (const warning of plan.warnings ?? []) {
    section.append(el("p", {class: "missing"}, String(warning)));
  }
  const search = plan.search ?? {};
  if (isNumber(search.layouts_considered)) {
    section.append(el("p", {class: "note"},
        `${search.layouts_considered} layouts considered` +
        (isNumber(search.seconds) ? ` in ${formatSeconds(search.seconds)}.` : ".")));
  }
  const rows = [planRow(plan.layout, predictionOf(plan), "chosen", "chosen")];
  for (const other of plan.alternatives ?? []) {
    rows.push(planRow(other.layout ?? other, predictionOf(other),
                      String(other.reason ?? ""), other.fits === false ? "unfit" : ""));
  }
  section.append(table("Chosen layout and alternatives",
      [{title: "Layout"}, {title: "Predicted step", number: true},
       {title: "Memory per device", number: true}, {title: "Bubble", number: true},
       {title: "Exposed communication", number: true}, {title: "Why"}], rows));
}
