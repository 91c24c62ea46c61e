-- SUCCEED: the processed image is stored. Writes status, result entry and record together.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id   2 lease, 3 attempt, 4 token of its core job   5 details JSON
--       then `field, value` of the result entry, without image id, status and time
-- answers
--   ok, {outcome}        written now
--   already, {outcome}   the upload ended before, perhaps with another outcome: nothing written
--   lost                 another upload or attempt is current: nothing written
--   missing              the image does not exist (any more)

operations[$IMG_OPERATION_SUCCEED] = function(key, arg, last)
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  local state = attempt_state(image, ARGV[arg], fence_at(arg + 1))
  if state ~= $FOUND_OK then
    return found(state, state == $FOUND_ALREADY and outcome_of(image) or nil)
  end
  local fields = { $RESULT_IMAGE_ID, image.id, $RESULT_STATUS, $RESULT_STATUS_PROCESSED,
    unpack(ARGV, arg + 5, last) }
  fields[#fields + 1] = $RESULT_PROCESSED_AT
  fields[#fields + 1] = now_rfc3339
  return found($FOUND_OK, settle(image, fields, ARGV[arg + 4]))
end
