// Loss, step time and speed over the steps.

function column(steps, name) {
  return steps.step.map((step, i) => [step, steps[name][i]]);
}

function present(points) {
  return points.filter((point) => isNumber(point[1]));
}

function repeatNote(steps) {
  const notes = [];
  if (steps.num_repeated > 0) {
    notes.push(`${steps.num_repeated} step${steps.num_repeated === 1 ? "" : "s"} ran again ` +
               "after a recovery; the last run of each is drawn.");
  }
  if (steps.num_steps > steps.step.length) {
    notes.push(`${steps.step.length} of ${steps.num_steps} steps are drawn.`);
  }
  return notes.length ? el("p", {class: "note"}, notes.join(" ")) : null;
}

const kSetColors = ["measured", "predicted", "accent", "validation", "compute", "data"];

// The held-out sets' losses; null if the run evaluated none.
function evaluationChart(evaluation) {
  const series = Object.entries(evaluation ?? {}).map(([label, points], i) => (
      {label, points, color: kSetColors[i % kSetColors.length],
       dashed: i >= kSetColors.length, dots: points.length === 1}));
  if (!series.length) return null;
  return el("div", {}, el("h3", {}, "Held-out sets, nats per token"),
            lineChart({title: "Loss of the held-out sets over the steps", series,
                       formatValue: (v) => v.toFixed(4)}));
}

function drawLoss(section, data) {
  section.append(...missingNotice(data, ["steps"]));
  if (!data.steps) return;
  const series = [{label: "training loss", color: "measured", points: column(data.steps, "loss")}];
  const validation = present(column(data.steps, "validation_loss"));
  if (validation.length) {
    series.push({label: "validation loss", color: "predicted", points: validation, dots: true});
  }
  const options = {title: "Loss over the steps", series, formatValue: (v) => v.toFixed(4)};
  if (data.job?.vocab_size > 1) {
    options.level = {label: `ln(${data.job.vocab_size}): even guessing`,
                     value: Math.log(data.job.vocab_size)};
  }
  const gradient = {title: "Gradient norm over the steps", from: 0,
                    series: [{label: "gradient norm", color: "accent",
                              points: column(data.steps, "grad_norm")}]};
  const note = repeatNote(data.steps);
  const evaluation = evaluationChart(data.steps.evaluation);
  section.append(
      el("div", {class: "pair"},
         el("div", {}, el("h3", {}, "Nats per token"), lineChart(options)),
         el("div", {}, el("h3", {}, "Gradient norm before clipping"), lineChart(gradient)),
         ...(evaluation ? [evaluation] : [])),
      ...(note ? [note] : []));
}

function drawSpeed(section, data) {
  section.append(...missingNotice(data, ["steps"]));
  if (!data.steps) return;
  const series = [{label: "measured", color: "measured", points: column(data.steps, "step_time_s")}];
  const predicted = present(column(data.steps, "predicted_step_time_s"));
  if (predicted.length) {
    series.push({label: "predicted", color: "predicted", points: predicted, dashed: true});
  }
  section.append(el("div", {class: "pair"},
      el("div", {}, el("h3", {}, "Step time"),
         lineChart({title: "Step time over the steps, predicted and measured", series, from: 0,
                    formatY: formatSeconds, formatValue: formatSeconds})),
      el("div", {}, el("h3", {}, "Tokens per second"),
         lineChart({title: "Tokens per second over the steps", from: 0, formatY: formatCount,
                    formatValue: formatCount,
                    series: [{label: "tokens/s", color: "measured",
                              points: column(data.steps, "tokens_per_s")}]}))));
}
