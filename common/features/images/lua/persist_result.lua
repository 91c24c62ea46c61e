-- PERSIST: write an entry of the result stream into the record, and acknowledge it. For results of
-- third-party pipelines: Sluice's own writes the record together with the entry.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 entry id   2 consumer group   then `field, value` of the entry, all of them
-- answers
--   ok        the record has the values of the entry now
--   already   it had them before, or a later entry or upload is current; only acknowledged
--   missing   the image does not exist (any more); only acknowledged

-- True if the entry has nothing new, or belongs to an upload that is not current any more.
local function is_old(image, entry_id, sha)
  if image.entry_id == entry_id then
    return true
  end
  if image.results_after ~= '' then
    if not older(image.results_after, entry_id) then
      return true
    end
    -- Reopened, and nothing was uploaded since.
    if image.state == $IMAGE_QUEUED and not is_claimed(image) then
      return true
    end
  end
  if not ENDED[image.state] then
    return false
  end
  if image.entry_id ~= '' and older(entry_id, image.entry_id) then
    return true
  end
  return sha and redis.call('HGET', image.record, $RESULT_DIGEST) == sha
end

operations[$IMG_OPERATION_PERSIST] = function(key, arg, last)
  local entry_id, group = ARGV[arg], ARGV[arg + 1]
  local image = load_image(key)
  local fields, sha = { unpack(ARGV, arg + 2, last) }, nil
  for at = 1, #fields, 2 do
    if fields[at] == $RESULT_DIGEST then
      sha = fields[at + 1]
    end
  end
  local answer = $FOUND_OK
  if not image then
    answer = $FOUND_MISSING
  elseif is_old(image, entry_id, sha) then
    answer = $FOUND_ALREADY
  else
    settle(image, fields, '{}', entry_id)
  end
  redis.call('XACK', KEYS[key + 4], group, entry_id)
  return found(answer)
end
