// Stacked bars: where each rank's time went, with the numbers beneath.

const kTimeCategories = [
  ["compute_s", "compute", "compute"],
  ["exposed_tensor_comm_s", "exposed tensor communication", "tensor-comm"],
  ["exposed_data_comm_s", "exposed data communication", "data-comm"],
  ["bubble_s", "bubble", "bubble"],
  ["data_s", "data", "data"],
  ["checkpoint_s", "checkpoint", "checkpoint"],
  ["validation_s", "validation", "validation"],
  ["recovery_s", "recovery", "recovery"],
  ["startup_s", "startup", "startup"],
  ["other_s", "other", "other"],
].map(([key, label, color]) => ({key, label, color}));

const kMaxBars = 64;

function totalOf(rank) {
  return kTimeCategories.reduce((sum, category) => sum + rank[category.key], 0);
}

function rankLabel(rank) {
  return isNumber(rank.stage) ? `rank ${rank.rank}, stage ${rank.stage}` : `rank ${rank.rank}`;
}

function stackedBars(ranks) {
  const width = 1100, left = 120, barHeight = 20, gap = 9;
  const longest = Math.max(...ranks.map(totalOf)) || 1;
  const height = ranks.length * (barHeight + gap);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
                           "aria-label": "Where each rank's time went", "data-ranks": ranks.length});
  ranks.forEach((rank, row) => {
    const y = row * (barHeight + gap);
    root.append(svg("text", {x: left - 10, y: y + 14, "text-anchor": "end"}, rankLabel(rank)));
    let x = left;
    for (const category of kTimeCategories) {
      const share = rank[category.key] / longest;
      if (share <= 0) continue;
      const part = svg("rect", {x, y, width: share * (width - left), height: barHeight,
                                fill: `var(--${category.color})`});
      part.append(svg("title", {}, `${category.label}: ${formatSeconds(rank[category.key])}, ` +
                                   formatPercent(rank[category.key] / totalOf(rank))));
      root.append(part);
      x += share * (width - left);
    }
  });
  return root;
}

function drawDeviceTime(section, data) {
  section.append(...missingNotice(data, ["time"]));
  if (!data.time) return;
  const ranks = data.time.ranks.slice(0, kMaxBars);
  const used = kTimeCategories.filter((category) => ranks.some((rank) => rank[category.key] > 0));
  section.append(
      el("p", {class: "note"}, "Read off each rank's compute lane over the whole run: it " +
         "computes, or what it waits for is named."),
      legend(used), el("figure", {}, stackedBars(ranks)));
  if (data.time.ranks.length > ranks.length) {
    section.append(el("p", {class: "note"}, `The first ${ranks.length} of ${data.time.ranks.length} ranks.`));
  }
  section.append(table("Where each rank's time went, in numbers",
      [{title: ""}, ...ranks.map((rank) => ({title: rankLabel(rank), number: true}))],
      [...used.map((category) => ({cells: [
         category.label, ...ranks.map((rank) => `${formatSeconds(rank[category.key])} · ` +
             formatPercent(rank[category.key] / (totalOf(rank) || 1)))]})),
       {className: "chosen", cells: ["total", ...ranks.map((rank) => formatSeconds(totalOf(rank)))]}]));
}
