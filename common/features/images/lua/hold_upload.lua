-- HOLD: extend the guard of an upload in progress.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id   2 ms it may still take
-- answers
--   ok     it has the guard for that time
--   lost   another upload is current, or it was submitted: nothing written

operations[$IMG_OPERATION_HOLD] = function(key, arg)
  local upload, hold_ms = ARGV[arg], tonumber(ARGV[arg + 1])
  local image = load_image(key)
  if not image or not is_uploading(image, upload) then
    return found($FOUND_LOST)
  end
  end_work(image) -- a lack of memory must not discard what was received so far
  redis.call('HSET', image.record, $RECORD_UPLOAD_DEADLINE_MS, as_integer(now_ms + hold_ms))
  set_guard(image)
  keep_image(image)
  return found($FOUND_OK)
end
