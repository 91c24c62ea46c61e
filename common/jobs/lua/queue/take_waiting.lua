-- TAKE_WAITING: hand a worker messages from waiting rooms, the oldest ones first.
--
-- keys  none of its own
-- args  1 consumer group   2 consumer   3 most messages, then the rooms: consumers that only wait
-- answers
--   ok, number, then for each message its id, how many texts follow, and those: field, value …
--                 the messages are the consumer's now. How often they were handed out does not
--                 change: they have not been begun

operations[$OPERATION_TAKE_WAITING] = function(key, arg, last)
  local group, consumer, most = unpack(ARGV, arg, arg + 2)
  local waiting = {}
  for at = arg + 3, last do
    local entries = redis.pcall('XPENDING', queue, group, '-', '+', most, ARGV[at])
    if entries['err'] then
      return { $ANSWER_OK, 0 } -- no group, or no queue: nobody waits
    end
    for _, entry in ipairs(entries) do
      waiting[#waiting + 1] = entry[1]
    end
  end
  table.sort(waiting, older)

  local reply, taken = { $ANSWER_OK, 0 }, 0
  for index = 1, math.min(#waiting, tonumber(most)) do
    local message_id = waiting[index]
    local entry = redis.call('XRANGE', queue, message_id, message_id)[1]
    if entry then
      redis.call('XCLAIM', queue, group, consumer, 0, message_id, 'JUSTID')
      local texts = entry[2]
      reply[#reply + 1] = message_id
      reply[#reply + 1] = tostring(#texts)
      for _, text in ipairs(texts) do
        reply[#reply + 1] = text
      end
      taken = taken + 1
    else
      acknowledge(group, message_id) -- somebody deleted it: there is nothing left to run
    end
  end
  reply[2] = taken
  return reply
end
