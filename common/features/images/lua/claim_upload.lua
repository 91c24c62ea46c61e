-- CLAIM: take the upload guard, before the body of an upload is read.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id   2 ms the upload may take
-- answers
--   ok                   this upload has the guard; also if it had it before (lost reply), or
--                        the deadline of the previous holder has passed
--   missing              the image does not exist
--   conflict, {status}   an upload has finished or is in progress: nothing written

operations[$IMG_OPERATION_CLAIM] = function(key, arg)
  local upload, hold_ms = ARGV[arg], tonumber(ARGV[arg + 1])
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  if not (image.state == $IMAGE_QUEUED and claim_guard(image)) then
    if not (is_uploading(image, upload) or is_stale(image)) then
      return found($FOUND_CONFLICT, { [$FACT_STATUS] = image.state })
    end
    set_guard(image)
  end
  redis.call('HSET', image.record, $RECORD_UPLOAD_ID, upload,
    $RECORD_UPLOAD_DEADLINE_MS, as_integer(now_ms + hold_ms), $RECORD_UPDATED_AT, now_rfc3339)
  show(image, $STAGE_QUEUED, $PROGRESS_QUEUED)
  keep_image(image)
  return found($FOUND_OK)
end
