-- REOPEN: allow a failed image, or one whose upload stalled, to be uploaded again.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  none
-- answers
--   ok, {upload_id?, job_id?}   that upload is not current any more; or it was so (lost reply)
--   conflict, {status}          the image is in another state: nothing written
--   missing                     the image does not exist (any more)

-- The last entry of the result stream: later ones belong to the next upload.
local function last_result(image)
  local last = redis.call('XREVRANGE', image.results, '+', '-', 'COUNT', 1)[1]
  local last_id = last and last[1] or NO_RESULT_YET
  if image.entry_id ~= '' and older(last_id, image.entry_id) then
    return image.entry_id
  end
  return last_id
end

operations[$IMG_OPERATION_REOPEN] = function(key)
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  local facts = { [$FACT_UPLOAD_ID] = image.upload ~= '' and image.upload or nil,
    [$FACT_JOB_ID] = image.job_id ~= '' and image.job_id or nil }
  local failed = image.state == $IMAGE_FAILED
  if not failed then
    local opened = image.results_after ~= '' and image.upload == '' and not is_claimed(image)
    if image.state == $IMAGE_QUEUED and opened then
      return found($FOUND_OK)
    end
    if not is_stale(image) then
      return found($FOUND_CONFLICT, { [$FACT_STATUS] = image.state })
    end
  end
  if failed then
    image.results_after = last_result(image)
  elseif image.results_after == '' then
    image.results_after = NO_RESULT_YET
  end
  redis.call('HSET', image.record, $RECORD_RESULTS_AFTER, image.results_after)
  redis.call('HDEL', image.record, unpack(OUTCOME_FIELDS))
  reset_upload(image)
  return found($FOUND_OK, facts)
end
