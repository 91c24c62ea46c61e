// Line drawings of 16 by 16.

import { svg } from "./dom.js";

const PATHS = {
  brand: "M1.5 5c2.2-2 4.3-2 6.5 0s4.3 2 6.5 0M1.5 8.5c2.2-2 4.3-2 6.5 0s4.3 2 6.5 0M1.5 12c2.2-2 4.3-2 6.5 0s4.3 2 6.5 0",
  menu: "M2 4h12M2 8h12M2 12h12",
  overview: "M2 13.5h12M4 11V8M7 11V3.5M10 11V6M13 11V9",
  jobs: "M5.5 4H14M5.5 8H14M5.5 12H14M2 4h.5M2 8h.5M2 12h.5",
  play: "M4.5 2.8v10.4L13 8z",
  flow: "M3.5 5.5a1.75 1.75 0 1 0 0-3.5 1.75 1.75 0 0 0 0 3.5zM12.5 14a1.75 1.75 0 1 0 0-3.5 1.75 1.75 0 0 0 0 3.5zM3.5 5.5v4a2.75 2.75 0 0 0 2.75 2.75h4.5",
  image: "M2 3h12v10H2zM2 11l3.5-3.5L9 11l2-2 3 3M10.5 6h.5",
  bull: "M3 2.5c0 2 1 3 3 3h4c2 0 3-1 3-3M4.5 5.5v4L8 13.5l3.5-4v-4M6.5 9h.3M9.2 9h.3",
  worker: "M8 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM8 1.5V4M8 12v2.5M1.5 8H4M12 8h2.5M3.4 3.4l1.8 1.8M10.8 10.8l1.8 1.8M12.6 3.4l-1.8 1.8M5.2 10.8l-1.8 1.8",
  queue: "M2 3.5h12v3H2zM2 9.5h12v3H2zM4.5 5h.5M4.5 11h.5",
  dead: "M2 4h12v8.5H2zM2 4.5l6 4.5 6-4.5",
  hook: "M6.5 9.5l3-3M7 4.5l1.5-1.5a2.9 2.9 0 0 1 4.2 4.2L11 8.8M9 11.5L7.5 13a2.9 2.9 0 0 1-4.2-4.2L5 7.2",
  doctor: "M1.5 8.5h3l2-5 3 9 2-4h3",
  key: "M5 11.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 8.5h6.5v3M11.5 8.5v2",
  trail: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM8 4.5V8l2.5 1.8",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z",
  auto: "M8 14.5a6.5 6.5 0 1 0 0-13 6.5 6.5 0 0 0 0 13zM8 1.5v13M8 5l5-1M8 8h6.4M8 11l5 1",
};

/** For the eye only. */
export function icon(name) {
  return svg(
    "svg",
    { class: "ico", viewBox: "0 0 16 16", width: 16, height: 16, fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
    svg("path", { d: PATHS[name] }),
  );
}
