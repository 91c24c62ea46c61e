// The list of images: previews, live stages, uploads.

import { get, stream, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { bytes as formatBytes } from "../../lib/format.js";
import { actionButton, pageHead, runAction, timeAgo, toast } from "../../components/ui.js";
import { IMAGE_TYPES, displayName, isFinished, preview, stageBadge, upload } from "./image.js";

const MAX_WATCHED = 100;
const CONCURRENCY = 3;

export default async function images({ session }) {
  const cards = new Map();
  const grid = h("div", { class: "gallery" });
  const footer = h("div");
  let source = null;
  let watchedIds = "";
  let cursor = null;

  function show(image, position = "append") {
    const node = h("a", { class: "card image-card", href: url`/ui/images/${image.image_id}`, dataset: { nav: "" } }, preview(image),
      h("div", { class: "image-info" }, h("span", { class: "name" }, displayName(image)),
        h("span", { class: "row" }, stageBadge(image), h("small", null, image.error_code ?? (image.file_size && formatBytes(image.file_size)))),
        h("small", null, timeAgo(Date.parse(image.created_at)))));
    const existing = cards.get(image.image_id)?.node;
    if (existing) existing.replaceWith(node);
    else grid[position](node);
    cards.set(image.image_id, { image, node });
  }

  async function load() {
    const page = await get("/v1/images", { limit: 48, before: cursor });
    for (const image of page.items) show(image);
    cursor = page.next;
    replace(footer, cursor ? actionButton("More", (button) => runAction(button, load)) : !cards.size && h("p", { class: "empty" }, "No images yet."));
    watch();
  }

  /** One event stream for the uploaded images that are not finished. */
  function watch() {
    const unfinished = [...cards.values()].filter(({ image }) => image.job_id && !isFinished(image));
    const ids = unfinished.slice(0, MAX_WATCHED).map(({ image }) => image.image_id).join();
    if (ids === watchedIds) return;
    watchedIds = ids;
    source?.close();
    const onProgress = (data) => show({ ...cards.get(data.image_id).image, ...data });
    const onFinished = async (data) => (show(await get(url`/v1/images/${data.image_id}`)), watch());
    source = ids && stream(`/v1/images/events?image_ids=${ids}`, { events: { processing: onProgress, ready: onFinished, failed: onFinished } });
  }

  async function uploadFiles(files) {
    const queue = [...files];
    const uploadNext = async () => {
      while (queue.length) {
        const file = queue.shift();
        try {
          const id = await upload(file, blur.checked ? "auto" : "none");
          show(await get(url`/v1/images/${id}`), "prepend");
          watch();
        } catch (error) {
          toast(`${file.name}: ${error.detail}`, "bad");
        }
      }
    };
    await Promise.all(Array.from({ length: CONCURRENCY }, uploadNext));
  }

  const blur = h("input", { type: "checkbox", checked: true });
  const fileInput = h("input", { type: "file", multiple: true, accept: IMAGE_TYPES, "aria-label": "Images to upload", onChange: () => uploadFiles(fileInput.files) });
  const setDragOver = (inside) => (event) => (event.preventDefault(), dropZone.classList.toggle("over", inside));
  const dropZone = h("div", { class: "drop-zone", onDragover: setDragOver(true), onDragleave: setDragOver(false), onDrop: (event) => (setDragOver(false)(event), uploadFiles(event.dataTransfer.files)) },
    h("p", null, "Drop images here, or choose files."), fileInput, h("label", { class: "check" }, blur, "detect and blur faces"));
  await load();
  return {
    title: "Images",
    node: h("div", { class: "stack" }, pageHead("Images"), session.can("submit") && dropZone, grid, footer),
    keys: session.can("submit") && { n: () => fileInput.click() },
    help: [["n", "upload"]],
    destroy: () => source?.close?.(),
  };
}
