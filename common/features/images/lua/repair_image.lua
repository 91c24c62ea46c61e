-- REPAIR: the core job is done, but its image was not updated; end it with the result of the job.
-- The entry of the result stream may have been trimmed: it is written again.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id   then `field, value` of the result entry, all of them
-- answers
--   ok, {outcome}        written now
--   already, {outcome}   the upload ended before
--   lost                 another upload is current: nothing written
--   missing              the image does not exist (any more)

operations[$IMG_OPERATION_REPAIR] = function(key, arg, last)
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  local state = attempt_state(image, ARGV[arg], { lease = '' })
  if state ~= $FOUND_OK then
    return found(state, state == $FOUND_ALREADY and outcome_of(image) or nil)
  end
  return found($FOUND_OK, settle(image, { unpack(ARGV, arg + 1, last) }, '{}'))
end
