-- FAIL: processing has failed. Writes status, result entry and record together.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id   2 lease, 3 attempt, 4 token of its core job   5 details JSON
--       6 error code   7 message
-- answers
--   ok, {outcome}        written now
--   already, {outcome}   the upload ended before, perhaps with another outcome: nothing written
--   lost                 another upload or attempt is current: nothing written
--   missing              the image does not exist (any more)

operations[$IMG_OPERATION_FAIL] = function(key, arg)
  local details, code, message = unpack(ARGV, arg + 4, arg + 6)
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  local state = attempt_state(image, ARGV[arg], fence_at(arg + 1))
  if state ~= $FOUND_OK then
    return found(state, state == $FOUND_ALREADY and outcome_of(image) or nil)
  end
  local fields = { $FAILURE_IMAGE_ID, image.id, $FAILURE_STATUS, $RESULT_STATUS_FAILED,
    $FAILURE_ERROR_CODE, code, $FAILURE_ERROR_MESSAGE, message, $FAILURE_FAILED_AT, now_rfc3339 }
  return found($FOUND_OK, settle(image, fields, details))
end
