// Predicted against measured time by kind of operation: what to mend in the
// hardware profile first.

// The operation's kind is its first word ("gemm m512 n256 ..." is a gemm).
function kindOf(instruction) {
  return instruction.operation.split(" ")[0] || instruction.name;
}

// Map from "lane, kind" to {lane, kind, count, predicted, measured}, in seconds
// of a mean rank.
function sumByKind(data) {
  const sums = new Map();
  const add = (timeline, field) => {
    // Predicted ranks stand for one stage each, so each stage weighs the same.
    const perStage = new Map();
    for (const rank of timeline.ranks) perStage.set(rank.stage, (perStage.get(rank.stage) ?? 0) + 1);
    for (const rank of timeline.ranks) {
      const weight = 1 / perStage.get(rank.stage) / perStage.size;
      for (const [id, start, end] of rank.events) {
        const instruction = instructionOf(data.programs, rank.stage, id);
        const key = `${instruction.lane} ${kindOf(instruction)}`;
        if (!sums.has(key)) {
          sums.set(key, {lane: instruction.lane, kind: kindOf(instruction),
                         count: 0, predicted: 0, measured: 0});
        }
        sums.get(key)[field] += (end - start) * weight;
        if (field === "measured") sums.get(key).count += weight;
      }
    }
  };
  add(data.predicted, "predicted");
  add(data.measured, "measured");
  return [...sums.values()];
}

function drawDifferences(section, data) {
  section.append(...missingNotice(data, ["predicted", "measured", "programs"]));
  if (!data.predicted || !data.measured || !data.programs) return;
  const rows = sumByKind(data).sort((a, b) =>
      Math.abs(b.measured - b.predicted) - Math.abs(a.measured - a.predicted)).slice(0, 14);
  section.append(
      el("p", {class: "note"}, "The same step, summed by lane and kind for a mean rank, the largest " +
         "difference first. Waiting for a peer counts into communication."),
      table("Predicted and measured time by kind of operation",
          [{title: "Lane"}, {title: "Kind"}, {title: "Calls", number: true},
           {title: "Predicted", number: true}, {title: "Measured", number: true},
           {title: "Difference", number: true}],
          rows.map((row) => ({cells: [row.lane.replaceAll("_", " "), row.kind,
            String(Math.round(row.count)), formatSeconds(row.predicted), formatSeconds(row.measured),
            (row.measured > row.predicted ? "+" : "") + formatSeconds(row.measured - row.predicted)]}))));
}
