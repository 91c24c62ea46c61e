// One image, updated live while it is processed, and helpers shared with the list of images.

import { del, get, post, put, stream, url } from "../../lib/api.js";
import { h, replace } from "../../lib/dom.js";
import { bytes as formatBytes, duration } from "../../lib/format.js";
import { actionButton, badge, collapsible, confirmDialog, jsonTree, pageHead, runAction, timeAgo } from "../../components/ui.js";

export const IMAGE_TYPES = "image/jpeg,image/png,image/webp,image/gif,image/heic,image/heif,image/avif,image/tiff";
const UNKNOWN_TYPE = "application/octet-stream";

export const isFinished = (image) => image.status === "processed" || image.status === "failed";
export const displayName = (image) => image.filename ?? image.image_id.slice(0, 8);
export const stageBadge = (image) => badge(image.status, isFinished(image) ? image.status : image.stage);

export default async function page({ params: { id }, navigate, session }) {
  const path = url`/v1/images/${id}`;
  const node = h("div", { class: "stack" });
  const fileInput = h("input", { type: "file", accept: IMAGE_TYPES, hidden: true, onChange: onFileChosen });
  let source = null;
  let image;
  let uploadTarget;

  async function load() {
    image = await get(path);
    draw();
    if (source || isFinished(image)) return;
    source = stream(`${path}/events`, {
      events: { processing: (data) => (Object.assign(image, data), draw()) },
      until: ["ready", "failed"],
      onState: (state) => state === "end" && ((source = null), image.job_id && load().catch(() => {})),
    });
  }

  async function uploadAgain(button) {
    uploadTarget = image.status === "failed" ? await runAction(button, post(`${path}/retry-upload`)) : image;
    if (uploadTarget) fileInput.click();
  }

  async function onFileChosen() {
    await runAction(node, uploadBytes(uploadTarget, fileInput.files[0]), "Uploaded.");
    await load();
  }

  async function remove(button) {
    const confirmed = await confirmDialog({ title: "Delete the image?", text: "Deletes the image, its job and its record. This cannot be undone.", yes: "Delete" });
    if (confirmed) await runAction(button, async () => (await del(path), navigate("/ui/images")));
  }

  function draw() {
    const { source_bytes: sourceBytes, file_size: fileSize, detector, timings_ms: timings } = image;
    const facts = {
      Created: timeAgo(Date.parse(image.created_at)),
      Job: image.job_id && h("a", { href: url`/ui/jobs/${image.job_id}` }, image.job_id),
      Uploaded: sourceBytes && `${formatBytes(sourceBytes)} ${image.source_format ?? image.uploaded_type ?? ""}`,
      Original: image.original_width && `${image.original_width} × ${image.original_height}`,
      Result: fileSize && `${image.processed_width} × ${image.processed_height}, ${formatBytes(fileSize)}`,
      Faces: detector && (detector === "none" ? "not checked" : `${image.detections?.length ?? 0} found by ${detector}, ${image.blur ?? "not blurred"}`),
      "Processing time": timings && duration(Object.values(timings).reduce((a, b) => a + b, 0)),
      "SHA-256": image.sha256 && h("code", null, image.sha256),
    };
    replace(node,
      pageHead(displayName(image),
        session.can("submit") && (image.status === "failed" || image.upload_url) && actionButton("Upload again", uploadAgain, { class: "primary" }),
        image.content_url && h("a", { class: "button", href: image.content_url, download: `${id}.webp` }, "Download"),
        session.can("cancel") && actionButton("Delete", remove, { class: "danger" })),
      fileInput,
      h("div", { class: "row" }, stageBadge(image), !isFinished(image) && [h("progress", { max: 100, value: image.progress, "aria-label": "Progress" }), `${image.progress} %`]),
      image.error && h("div", { class: "box error" }, h("p", null, image.error), h("code", null, [image.error_code, image.reason].filter(Boolean).join(" · "))),
      h("div", { class: "two-columns" }, image.content_url && h("div", { class: "full-image" }, preview(image, displayName(image))),
        h("section", { class: "card" }, h("dl", { class: "facts" }, Object.entries(facts).map(([name, value]) => value && [h("dt", null, name), h("dd", null, value)])))),
      collapsible("JSON", jsonTree(image)));
  }

  await load();
  return { title: displayName(image), node, destroy: () => source?.close() };
}

/**
 * Preview of an image, or its progress. None for an image in a bucket: the
 * content security policy allows images of this origin only.
 */
export function preview(image, alt = "") {
  const frame = h("div", { class: "image-preview" });
  if (image.dominant_color) frame.style.backgroundColor = image.dominant_color;
  const onError = () => frame.replaceChildren("no preview");
  if (image.content_url) frame.append(h("img", { src: image.content_url, alt, loading: "lazy", onError }));
  else frame.append(image.status === "failed" ? "✗" : h("progress", { max: 100, value: image.progress, "aria-label": "Progress" }));
  return frame;
}

/** Create an image and upload its bytes; returns its id. */
export async function upload(file, detect) {
  const filename = file.name.replace(/\p{C}/gu, "").slice(0, 255) || "image";
  const created = await post("/v1/images", { filename, detect });
  await uploadBytes(created, file);
  return created.image_id;
}

/** Upload the bytes of an image that was created before. */
export function uploadBytes({ image_id: id, upload_token: token }, file) {
  const headers = { "Content-Type": IMAGE_TYPES.includes(file.type) ? file.type || UNKNOWN_TYPE : UNKNOWN_TYPE, ...(token && { "X-Upload-Token": token }) };
  return put(url`/v1/images/${id}/upload`, file, { headers });
}
