-- Record what came of a try to send a claimed message: it is deleted, due later or given up, and its job's log gets
-- a line. If another event has taken its id meanwhile, only the message of its own event is changed. One that was
-- delivered or given up meanwhile stays so.
-- KEYS 1 outbox (sorted set)   2 messages (hash)   3 log of the job (list)   4 receivers that answered (sorted set)
-- ARGV 1 id   2 message JSON, with its tries counted
--      3 'delivered', 'given up', or the seconds until the next try   4 how many given-up messages are kept
--      5 line of the log   6 lines that are kept   7 seconds for which they are kept
--      8 receiver   9 '1' if it answered promptly, '0' if not, '' if that is not known   10 receivers that are kept
-- Returns nothing.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6

local function end_try(id)
  if ARGV[3] == 'delivered' then
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
  elseif ARGV[3] == 'given up' then
    give_up_message(KEYS[1], KEYS[2], id, ARGV[4])
  else
    local message = id == ARGV[1] and ARGV[2] or with_id(ARGV[2], ARGV[1], id)
    put_message(KEYS[1], KEYS[2], id, message, string.format('%.6f', now + ARGV[3]))
  end
end

local id = kept_id(KEYS[2], ARGV[1], ARGV[2])
if id and redis.call('ZSCORE', KEYS[1], id) then end_try(id) end

set_aside_unless('list', KEYS[3])
redis.call('LPUSH', KEYS[3], ARGV[5])
redis.call('LTRIM', KEYS[3], 0, ARGV[6] - 1)
redis.call('EXPIRE', KEYS[3], ARGV[7])

if ARGV[9] == '1' then
  redis.call('ZADD', KEYS[4], now, ARGV[8])
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[10])
elseif ARGV[9] == '0' then
  redis.call('ZREM', KEYS[4], ARGV[8])
end
