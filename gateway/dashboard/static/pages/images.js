// All images: previews, stages as they pass, uploads by choosing or dropping.

import { get, stream, url } from "../api.js";
import { h, replace } from "../dom.js";
import { bytes as size } from "../format.js";
import { act, pageHead, toast, when } from "../ui.js";
import { TYPES, ended, nameOf, picture, stage, upload } from "./image_parts.js";
import { press } from "./parts.js";

const WATCHED = 100;
const AT_ONCE = 3;

export default async function images({ me }) {
  const cards = new Map();
  const grid = h("div", { class: "gallery" });
  const more = h("div");
  let source = null;
  let watched = "";
  let next = null;

  function show(image, put = "append") {
    const node = h("a", { class: "card shot", href: url`/ui/images/${image.image_id}`, dataset: { nav: "" } }, picture(image),
      h("div", { class: "about" }, h("span", { class: "name" }, nameOf(image)),
        h("span", { class: "row" }, stage(image), h("small", null, image.error_code ?? (image.file_size && size(image.file_size)))),
        h("small", null, when(Date.parse(image.created_at)))));
    const before = cards.get(image.image_id)?.node;
    if (before) before.replaceWith(node);
    else grid[put](node);
    cards.set(image.image_id, { image, node });
  }

  async function load() {
    const page = await get("/v1/images", { limit: 48, before: next });
    for (const image of page.items) show(image);
    next = page.next;
    replace(more, next ? press("More", (at) => act(at, load)) : !cards.size && h("p", { class: "empty" }, "No images yet."));
    watch();
  }

  /** One stream for those that were uploaded and have not ended. */
  function watch() {
    const under = [...cards.values()].filter(({ image }) => image.job_id && !ended(image));
    const ids = under.slice(0, WATCHED).map(({ image }) => image.image_id).join();
    if (ids === watched) return;
    watched = ids;
    source?.close();
    const moved = (data) => show({ ...cards.get(data.image_id).image, ...data });
    const over = async (data) => (show(await get(url`/v1/images/${data.image_id}`)), watch());
    source = ids && stream(`/v1/images/events?image_ids=${ids}`, { events: { processing: moved, ready: over, failed: over } });
  }

  async function take(files) {
    const waiting = [...files];
    const one = async () => {
      while (waiting.length) {
        const file = waiting.shift();
        try {
          const id = await upload(file, blur.checked ? "auto" : "none");
          show(await get(url`/v1/images/${id}`), "prepend");
          watch();
        } catch (error) {
          toast(`${file.name}: ${error.detail}`, "bad");
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
  }

  const blur = h("input", { type: "checkbox", checked: true });
  const chooser = h("input", { type: "file", multiple: true, accept: TYPES, "aria-label": "Images to upload", onChange: () => take(chooser.files) });
  const over = (is) => (event) => (event.preventDefault(), drop.classList.toggle("over", is));
  const drop = h("div", { class: "drop", onDragover: over(true), onDragleave: over(false), onDrop: (event) => (over(false)(event), take(event.dataTransfer.files)) },
    h("p", null, "Drop images here, or choose some."), chooser, h("label", { class: "check" }, blur, "look for faces and blur them"));
  await load();
  return {
    title: "Images",
    node: h("div", { class: "stack" }, pageHead("Images"), me.may("submit") && drop, grid, more),
    keys: me.may("submit") && { n: () => chooser.click() },
    help: [["n", "upload"]],
    destroy: () => source?.close?.(),
  };
}
